//! A panic: its text is in the log.

warmhold_sdk::lease_policy!(hostile::lease::Hostile<hostile::lease::Panic>);
