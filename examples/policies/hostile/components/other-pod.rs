//! Names a pod that is not the lease's: refused.

warmhold_sdk::replay_policy!(hostile::replay::Hostile<hostile::replay::OtherPod>);
