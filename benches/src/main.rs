//! Speed and memory, printed as ratios from one run: what a machine can do differs, what a thing costs beside another
//! thing of the same run differs far less.
//!
//! Nothing here fails for being slow. It ends with an error when something doesn't *work*: a wrong decision, a write that
//! was acknowledged and isn't there, a replay that isn't observed.

mod commit;
mod control;
mod decision;
mod disk;
mod measure;
mod rows;
mod start;
mod warm;

use anyhow::{Result, bail};
use std::process::ExitCode;

/// The daemon's: what is measured in this process should cost what it costs there.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[&str]) -> Result<()> {
    match arguments {
        // What `commit` starts under strace: not a part of its own.
        [commit::COUNTED, folder] => return commit::counted(folder.as_ref()),
        // What `control` starts beside the daemon.
        [control::LOAD] => return control::load(),
        #[cfg(feature = "etcd")]
        [control::etcd::LOAD] => return control::etcd::load(),
        [control::READS] => return control::read(),
        [control::SERVE, "--root", root, who] => return control::serve(root.as_ref(), who),
        [] => {
            measure::machine();
            decision::run()?;
            commit::run()?;
            warm::run()?;
            start::run()?;
            control::run(&control::Plan::parse(&[])?)?;
        }
        ["decision"] => measure::with_machine(decision::run)?,
        ["commit"] => measure::with_machine(commit::run)?,
        ["replay"] => measure::with_machine(warm::run)?,
        ["start"] => measure::with_machine(start::run)?,
        ["control", options @ ..] => {
            let plan = control::Plan::parse(options)?;
            measure::machine();
            control::run(&plan)?;
        }
        other => bail!(
            "there is no part {:?}; use: decision, commit, replay, start, {}, or none for all",
            other.join(" "),
            control::USAGE
        ),
    }
    Ok(())
}
