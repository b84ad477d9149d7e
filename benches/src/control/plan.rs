//! What of the bench is wanted.

use super::server::Who;
use anyhow::{Context as _, Result, bail, ensure};
use std::time::Duration;

/// For who asks.
pub(crate) const USAGE: &str = "control [--rows N,…] [--clients N,…] [--against native,constant,etcd] [--also one,reads,list] [--rounds N] [--seconds S]";

/// What is measured beside the cycles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Also {
    /// What a lone client's write is made of.
    One,
    /// Reads while others write.
    Reads,
    /// A long list.
    List,
}

impl Also {
    const ALL: [Self; 3] = [Self::One, Self::Reads, Self::List];

    fn name(self) -> &'static str {
        match self {
            Self::One => "one",
            Self::Reads => "reads",
            Self::List => "list",
        }
    }
}

/// What is measured, and for how long.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Plan {
    pub(super) rows: Vec<usize>,
    pub(super) clients: Vec<usize>,
    pub(super) against: Vec<Who>,
    pub(super) also: Vec<Also>,
    pub(super) rounds: usize,
    /// Of each measurement.
    pub(super) time: Duration,
    /// Nothing was left out.
    pub(super) whole: bool,
}

impl Plan {
    /// From the arguments after `control`.
    pub(crate) fn parse(arguments: &[&str]) -> Result<Self> {
        let mut plan = Self {
            rows: vec![100, 10_000, 100_000],
            clients: vec![1, 16, 64, 256],
            against: Who::OTHERS.into_iter().filter(|who| *who != Who::Etcd || cfg!(feature = "etcd")).collect(),
            also: if arguments.is_empty() { Also::ALL.to_vec() } else { Vec::new() },
            rounds: 3,
            time: Duration::from_millis(1500),
            whole: arguments.is_empty(),
        };
        for pair in arguments.chunks(2) {
            let [option, value] = pair else { bail!("{pair:?} is without a value; use: {USAGE}") };
            match *option {
                "--rows" => plan.rows = numbers(value)?,
                "--clients" => plan.clients = numbers(value)?,
                "--against" => plan.against = value.split(',').map(who).collect::<Result<_>>()?,
                "--also" => plan.also = value.split(',').map(also).collect::<Result<_>>()?,
                "--rounds" => plan.rounds = number(value)?,
                "--seconds" => plan.time = Duration::try_from_secs_f64(value.parse()?)?,
                other => bail!("control knows no {other:?}; use: {USAGE}"),
            }
        }
        let most = super::seed::CLIENTS;
        ensure!(plan.clients.iter().all(|clients| *clients <= most), "there are at most {most} clients");
        Ok(plan)
    }

    /// How many rows a ledger has so that each client finds a worker.
    pub(super) fn ledger(rows: usize, clients: usize) -> usize {
        rows.max(clients)
    }

    /// The ledgers that are needed.
    pub(super) fn ledgers(&self) -> Vec<usize> {
        let each = |rows: &usize| self.clients.iter().map(|clients| Self::ledger(*rows, *clients)).collect::<Vec<_>>();
        let mut ledgers: Vec<usize> = self.rows.iter().flat_map(each).collect();
        ledgers.sort_unstable();
        ledgers.dedup();
        ledgers
    }
}

fn numbers(text: &str) -> Result<Vec<usize>> {
    text.split(',').map(number).collect()
}

fn number(text: &str) -> Result<usize> {
    let number = text.parse().with_context(|| format!("{text:?} is no number"))?;
    ensure!(number > 0, "0 is too few");
    Ok(number)
}

fn who(name: &str) -> Result<Who> {
    Who::OTHERS
        .into_iter()
        .find(|who| who.name() == name)
        .with_context(|| format!("nothing to compare with is called {name:?}; use: {USAGE}"))
}

fn also(name: &str) -> Result<Also> {
    let found = Also::ALL.into_iter().find(|also| also.name() == name);
    found.with_context(|| format!("nothing that can also be measured is called {name:?}; use: {USAGE}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_measured_unless_less_is_asked_for() {
        let all = Plan::parse(&[]).unwrap();
        assert!(all.whole);
        assert_eq!(all.also, Also::ALL);
        assert_eq!(all.ledgers(), [100, 256, 10_000, 100_000]);
        let some =
            Plan::parse(&["--rows", "10000", "--clients", "64,1", "--against", "native", "--seconds", "0.5"]).unwrap();
        assert!(!some.whole && some.also.is_empty());
        assert_eq!(some.ledgers(), [10_000]);
        assert_eq!((some.clients, some.against), (vec![64, 1], vec![Who::Native]));
        assert_eq!(some.time, Duration::from_millis(500));
    }

    #[test]
    fn what_cannot_be_measured_is_refused() {
        for wrong in [
            &["--rows"][..],
            &["--rows", "0"],
            &["--clients", "257"],
            &["--against", "redis"],
            &["--speed", "1"],
            &["--also", "more"],
        ] {
            assert!(Plan::parse(wrong).is_err(), "{wrong:?}");
        }
    }
}
