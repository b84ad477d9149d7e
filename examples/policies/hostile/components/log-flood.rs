//! A log line of 100 MiB: cut, or ended by the limit on bytes.

warmhold_sdk::lease_policy!(hostile::lease::Hostile<hostile::lease::LogFlood>);
