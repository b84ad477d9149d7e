//! Leased ports: one band, the lowest free one first.

use super::answer::Answer;
use super::body::read_object;
use super::exchange::Exchange;
use super::fields::{MAX_TTL_MS, number, text, whole};
use super::ledger::{Guarded, apply, machine_scope, own_machine};
use super::rows;
use super::values::{Port, PortTtl, Text};
use crate::error::ApiError;
use serde_json::Value;
use utoipa::ToSchema;
use warmhold_ledger::{Operation, PortRequest};

/// The ports that are leased out.
pub(super) const FIRST: u16 = 31450;
/// The last of them.
pub(super) const LAST: u16 = 31499;

/// The body of `POST /v1/leases/port`. Other fields are ignored.
#[derive(ToSchema)]
#[schema(example = json!({"machine": "build-07", "purpose": "debug", "ttlMs": 60000, "excluded": [31450]}))]
#[schema(rename_all = "camelCase")]
#[allow(dead_code, reason = "the parser reads the JSON itself; this type says what it takes")]
pub(super) struct LeasePort {
    /// The machine that the port is of; a machine's token leases for itself alone.
    machine: Text,
    /// What it is for.
    purpose: Text,
    /// How long the lease lasts, in milliseconds; cut to a day.
    ttl_ms: PortTtl,
    /// Ports that aren't wanted.
    #[schema(nullable = false)]
    excluded: Option<Vec<Port>>,
}

/// A port that was leased.
#[derive(ToSchema)]
#[allow(dead_code, reason = "rows are written as text; this type says what that text holds")]
pub(super) struct LeasedPort {
    /// Which.
    port: Port,
    /// Its row; the only answer that shows `attrs.leaseId`.
    lease: rows::StoredRow,
}

/// `POST /v1/leases/port`.
pub(super) async fn lease(exchange: &mut Exchange) -> Result<Answer, ApiError> {
    let fields = read_object(exchange, "invalid-port-lease").await?;
    let invalid = |message: &str| ApiError::bad_request("invalid-port-lease", message);
    let machine = text(&fields, "machine").ok_or_else(|| invalid("machine must be a text that isn't blank"))?;
    let purpose = text(&fields, "purpose").ok_or_else(|| invalid("purpose must be a text that isn't blank"))?;
    let ttl_ms =
        number(&fields, "ttlMs").filter(|ttl| *ttl > 0.0).ok_or_else(|| invalid("ttlMs must be a number above 0"))?;
    let excluded = match fields.get("excluded") {
        None => Some(Vec::new()),
        Some(Value::Array(ports)) => ports.iter().map(port_of).collect(),
        Some(_) => None,
    }
    .ok_or_else(|| invalid("excluded must be an array of ports from 31450 to 31499"))?;
    if let Some(own) = exchange.caller()?.machine.as_deref().filter(|own| *own != machine) {
        return Err(machine_scope(own));
    }
    #[allow(clippy::cast_precision_loss, reason = "a day of milliseconds is far below 2^53")]
    let ttl_ms = ttl_ms.min(MAX_TTL_MS as f64);
    let request = PortRequest {
        machine: machine.to_owned(),
        purpose: purpose.to_owned(),
        ttl_ms,
        excluded,
        first: FIRST,
        last: LAST,
    };
    let written = apply(exchange, Operation::LeasePort(request), Guarded::No).await?;
    let row = written.row()?;
    let port = row.id.rsplit(':').next().and_then(band).ok_or_else(|| {
        tracing::error!(row = %row.id, "a leased port's row has no port");
        ApiError::internal()
    })?;
    let text = format!("{{\"port\":{port},\"lease\":{}}}", rows::stored(row));
    Ok(Answer::json_text(text).decided_by(written.policy))
}

/// `POST /v1/leases/port/{port}/heartbeat`.
pub(super) async fn renew(exchange: &mut Exchange, raw: &str) -> Result<Answer, ApiError> {
    let (port, lease_id) = held(exchange, raw).await?;
    let written = apply(exchange, Operation::RenewPort { port, lease_id }, Guarded::No).await?;
    Ok(Answer::json_text(rows::without_lease(written.row()?)).decided_by(written.policy))
}

/// `DELETE /v1/leases/port/{port}`.
pub(super) async fn release(exchange: &mut Exchange, raw: &str) -> Result<Answer, ApiError> {
    let (port, lease_id) = held(exchange, raw).await?;
    let written = apply(exchange, Operation::ReleasePort { port, lease_id }, Guarded::No).await?;
    Ok(Answer::nothing().decided_by(written.policy))
}

/// The port in the path and the lease in the header. The header is looked at last: clients of the original know it so.
async fn held(exchange: &Exchange, raw: &str) -> Result<(u16, String), ApiError> {
    let port = exchange
        .segment(raw, "invalid-port")
        .ok()
        .and_then(|text| band(&text))
        .ok_or_else(|| ApiError::bad_request("invalid-port", "ports are leased from 31450 to 31499"))?;
    own_machine(exchange, &format!("port-lease:{port}")).await?;
    let mut values = exchange.head.headers.get_all("x-port-lease-id").iter();
    let lease = match (values.next(), values.next()) {
        (Some(value), None) => value.to_str().ok().filter(|value| !value.is_empty()),
        _ => None,
    };
    let lease = lease.ok_or_else(|| {
        ApiError::bad_request("missing-lease-id", "the header x-port-lease-id must name the port's lease, once")
    })?;
    Ok((port, lease.to_owned()))
}

/// A port of the band in its plain decimal form.
fn band(text: &str) -> Option<u16> {
    let port: u16 = text.parse().ok()?;
    ((FIRST..=LAST).contains(&port) && port.to_string() == text).then_some(port)
}

fn port_of(value: &Value) -> Option<u16> {
    whole(value, FIRST.into(), LAST.into()).and_then(|port| u16::try_from(port).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_of_the_band_in_one_form() {
        assert_eq!(band("31450"), Some(31450));
        assert_eq!(band("31499"), Some(31499));
        for bad in ["31449", "31500", "031450", "+31450", "31450 ", "abc", "", "97000", "-1", "3.145e4"] {
            assert_eq!(band(bad), None, "{bad}");
        }
    }
}
