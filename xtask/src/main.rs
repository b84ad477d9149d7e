//! What `./x` runs that is more than a line of shell.

mod demo;

use anyhow::{Result, bail};

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some("demo") => demo::run(),
        other => bail!("xtask knows no {other:?}; use ./x"),
    }
}
