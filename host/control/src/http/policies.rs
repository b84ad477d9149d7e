//! Policies: what serves, and serving another one.

use super::answer::Answer;
use super::body::read_component;
use super::exchange::Exchange;
use super::{Control, undivided, within};
use crate::api::PolicySlot;
use crate::error::ApiError;
use std::sync::Arc;

/// `GET /v1/policies`.
pub(super) async fn list(exchange: &Exchange) -> Result<Answer, ApiError> {
    let Control { options, .. } = &*exchange.control;
    Answer::json(&within(options.limits.read_time, options.policies.list()).await?)
}

/// `POST /v1/policies/{slot}`.
pub(super) async fn load(exchange: &mut Exchange, slot: PolicySlot) -> Result<Answer, ApiError> {
    let component = read_component(exchange).await?;
    let policies = Arc::clone(&exchange.control.options.policies);
    // The component stays in memory for as long as it is loaded, whether the client waits or not.
    let room = exchange.room.take();
    let load = async move {
        let loaded = policies.load(slot, component).await;
        drop(room);
        loaded
    };
    Answer::json(&undivided("load a policy", load).await?)
}

/// `POST /v1/policies/{slot}/rollback`.
pub(super) async fn roll_back(exchange: &Exchange, slot: PolicySlot) -> Result<Answer, ApiError> {
    let policies = Arc::clone(&exchange.control.options.policies);
    Answer::json(&undivided("roll a policy back", async move { policies.rollback(slot).await }).await?)
}
