//! Serves the control plane with the standard policy called natively, for recorded scenarios and for benches of this
//! crate alone. The daemon is `warmhold serve`; this has no pods, no replays and no components.
//!
//! `conformance_server serve --root DIR --listen ADDR:PORT --machine NAME [--primary-lease FILE] [--require-primary]`
//! `conformance_server token --root DIR NAME`

#[path = "../tests/support/mod.rs"]
mod support;

use std::path::PathBuf;
use std::process::ExitCode;
use support::{Document, Running, Setup};
use warmhold_control::{MachineName, MachineTokens};

fn main() -> ExitCode {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    match run(std::env::args().skip(1)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}

fn run(mut words: impl Iterator<Item = String>) -> Result<(), Box<dyn std::error::Error>> {
    let command = words.next().ok_or("say serve or token")?;
    let (mut root, mut setup, mut name) = (None, Setup::default(), None);
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("{word} wants a value"));
        match word.as_str() {
            "--root" => root = Some(PathBuf::from(value()?)),
            "--listen" => setup.address = Some(value()?.parse()?),
            "--machine" => setup.machine = Some(value()?),
            "--primary-lease" => setup.document = Document::File(value()?.into()),
            "--own-primary" => setup.document = Document::Own,
            "--require-primary" => setup.require_primary = true,
            _ => name = Some(word),
        }
    }
    let root = root.ok_or("--root is missing")?;
    if command == "token" {
        let name = MachineName::parse(&name.ok_or("which machine?")?)?;
        println!("{}", MachineTokens::of(&root).issue(&name)?);
        return Ok(());
    }
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(async {
        let running = Running::start(&root, setup).await;
        println!("serving on http://{}", running.address);
        let mut ended = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
        ended.recv().await;
        running.stop().await;
        Ok(())
    })
}
