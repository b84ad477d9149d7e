//! Policies: what serves, and serving another one.

use super::answer::Answer;
use super::body::read_component;
use super::exchange::Exchange;
use crate::api::PolicySlot;
use crate::error::ApiError;
use std::sync::Arc;

/// `GET /v1/policies`.
pub(super) async fn list(exchange: &Exchange) -> Result<Answer, ApiError> {
    Answer::json(&exchange.control.options.policies.list().await?)
}

/// `POST /v1/policies/{slot}`.
pub(super) async fn load(exchange: &mut Exchange, slot: PolicySlot) -> Result<Answer, ApiError> {
    let component = read_component(exchange).await?;
    let policies = Arc::clone(&exchange.control.options.policies);
    // In a task of its own: a load either happens whole or not at all, whether the client waits or not.
    match tokio::spawn(async move { policies.load(slot, component).await }).await {
        Ok(loaded) => Answer::json(&loaded?),
        Err(error) => {
            tracing::error!(%error, %slot, "loading a policy broke off");
            Err(ApiError::internal())
        }
    }
}

/// `POST /v1/policies/{slot}/rollback`.
pub(super) async fn roll_back(exchange: &Exchange, slot: PolicySlot) -> Result<Answer, ApiError> {
    Answer::json(&exchange.control.options.policies.rollback(slot).await?)
}
