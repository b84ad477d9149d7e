//! What the demo prints.

use anyhow::{Result, ensure};
use warmhold_tests::Site;

/// A headline.
pub(crate) fn step(what: &str) {
    println!("\n=== {what}");
}

/// A remark.
pub(crate) fn say(what: &str) {
    println!("    {}", what.replace('\n', "\n    "));
}

/// Runs a command as a user would, prints it and what it says, and holds its exit status against what was told.
///
/// # Errors
/// Another exit status.
pub(crate) fn run(site: &Site, arguments: &[&str], want: i32) -> Result<()> {
    let folder = site.folder().to_string_lossy().into_owned();
    println!("$ warmhold {}", arguments.join(" ").replace(&folder, "…"));
    let ran = site.run(arguments)?;
    print!("{}{}", ran.stdout, ran.stderr);
    ensure!(ran.code == want, "`warmhold {}` ended with {}, not {want}", arguments.join(" "), ran.code);
    if want != 0 {
        println!("(exit {want})");
    }
    Ok(())
}

/// A table of two columns.
pub(crate) fn table(title: &str, rows: &[(String, String)]) {
    step(title);
    let width = rows.iter().map(|(left, _)| left.chars().count()).max().unwrap_or(0);
    for (left, right) in rows {
        println!("    {left:<width$}  {right}");
    }
}

/// The end of a text.
pub(crate) fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines.iter().skip(lines.len().saturating_sub(count)).copied().collect::<Vec<_>>().join("\n")
}
