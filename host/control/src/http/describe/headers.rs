//! The headers of answers.

use super::super::values::text;
use utoipa::openapi::extensions::Extensions;
use utoipa::openapi::header::{Header, HeaderBuilder};
use utoipa::openapi::schema::{Object, ObjectBuilder};
use utoipa::openapi::{ComponentsBuilder, Ref, ResponseBuilder, Type};

const REQUEST_ID: (&str, &str) = ("x-request-id", "RequestId");
/// Where the head may be so large that it isn't even read.
const REQUEST_ID_IF_READ: (&str, &str) = ("x-request-id", "RequestIdIfRead");
const PRIMARY_GENERATION: (&str, &str) = ("x-primary-generation", "PrimaryGeneration");
const POLICY: (&str, &str) = ("x-warmhold-policy", "Policy");
const RETRY_AFTER: (&str, &str) = ("retry-after", "RetryAfter");
const CHALLENGE: (&str, &str) = ("www-authenticate", "Challenge");
const ETAG: (&str, &str) = ("etag", "ETag");

/// Adds what each of them is.
pub(super) fn define(components: ComponentsBuilder) -> ComponentsBuilder {
    let whole = || ObjectBuilder::new().schema_type(Type::Integer).minimum(Some(1)).build();
    components
        .header(REQUEST_ID.1, header("In the daemon's log too, and in `requestId` of a refusal.", text().build(), true))
        .header(
            REQUEST_ID_IF_READ.1,
            header(
                "As always, but for a head that is too large even to be read: that is refused without a body.",
                text().build(),
                false,
            ),
        )
        .header(PRIMARY_GENERATION.1, header("The generation of the primary; there while it is known.", whole(), false))
        .header(
            POLICY.1,
            header(
                "The policy that decided, refusals and its own faults included: `NAME@sha256:DIGEST#GENERATION`.",
                text().pattern(Some("@sha256:[0-9a-f]{64}#[0-9]+$")).build(),
                false,
            ),
        )
        .header(RETRY_AFTER.1, header("Seconds after which trying again is worth it.", whole(), false))
        .header(CHALLENGE.1, header("`Bearer`.", text().build(), true))
        .header(ETAG.1, header("Send it in `if-none-match` to ask whether it is still the same.", text().build(), true))
}

fn header(description: &str, schema: Object, required: bool) -> Header {
    HeaderBuilder::new()
        .schema(Some(schema))
        .description(Some(description))
        // The builder has no field for it.
        .extensions(Some(Extensions::from_iter([("required", required)])))
        .build()
}

/// What every answer has.
pub(super) fn on_every(answer: ResponseBuilder) -> ResponseBuilder {
    refer(refer(answer, REQUEST_ID), PRIMARY_GENERATION)
}

/// On an answer that a policy decided.
pub(super) fn on_decided(answer: ResponseBuilder) -> ResponseBuilder {
    refer(answer, POLICY)
}

/// On an answer that may be kept.
pub(super) fn on_kept(answer: ResponseBuilder) -> ResponseBuilder {
    refer(answer, ETAG)
}

/// What a refusal has.
pub(super) fn on_refusal(answer: ResponseBuilder, status: u16, decided: bool) -> ResponseBuilder {
    let answer = on_every(answer);
    let answer = if decided { on_decided(answer) } else { answer };
    match status {
        401 => refer(answer, CHALLENGE),
        429 | 503 => refer(answer, RETRY_AFTER),
        431 => refer(answer, REQUEST_ID_IF_READ),
        _ => answer,
    }
}

fn refer(answer: ResponseBuilder, (name, component): (&str, &str)) -> ResponseBuilder {
    answer.header_ref(name, Ref::new(format!("#/components/headers/{component}")))
}
