//! Never answers: the deadline ends it.

warmhold_sdk::lease_policy!(hostile::lease::Hostile<hostile::lease::EndlessLoop>);
