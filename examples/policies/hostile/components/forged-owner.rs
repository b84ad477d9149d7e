//! Another owner in the row: the fence refuses.

warmhold_sdk::lease_policy!(hostile::lease::Hostile<hostile::lease::ForgedOwner>);
