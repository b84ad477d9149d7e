//! A stack that ends: a trap.

warmhold_sdk::lease_policy!(hostile::lease::Hostile<hostile::lease::DeepRecursion>);
