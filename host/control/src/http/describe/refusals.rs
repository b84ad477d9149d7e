//! The refusals of a route: which codes come with which status.

use super::headers;
use crate::error::RefusalBody;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use utoipa::ToSchema;
use utoipa::openapi::schema::{AllOfBuilder, ObjectBuilder};
use utoipa::openapi::{Content, Ref, Response, ResponseBuilder, Type};
use warmhold_ledger::Refusal;

/// Codes that are answered with one status.
#[derive(Default)]
struct Codes {
    codes: BTreeSet<&'static str>,
    /// Other codes may come too: another control plane, or another crate, may have more to say.
    others: bool,
    /// A policy may be who refuses.
    decided: bool,
}

/// Every refusal of one route.
#[derive(Default)]
pub(super) struct Refusals(BTreeMap<u16, Codes>);

impl Refusals {
    /// With these codes.
    pub(super) fn with(mut self, status: u16, codes: &[&'static str]) -> Self {
        self.0.entry(status).or_default().codes.extend(codes);
        self
    }

    /// With codes that aren't all known here.
    pub(super) fn and_others(mut self, statuses: &[u16]) -> Self {
        for status in statuses {
            self.0.entry(*status).or_default().others = true;
        }
        self
    }

    /// Of a route that reads a body.
    pub(super) fn body(self) -> Self {
        let codes = self.with(400, &["incomplete-body"]).with(408, &["request-timeout"]).with(413, &["too-large"]);
        codes.with(503, &["too-many-bodies"])
    }

    /// Of a route that reads a JSON body.
    pub(super) fn json(self) -> Self {
        self.body().with(400, &["invalid-json"])
    }

    /// Of a route that waits for something, within bounds.
    pub(super) fn waits(self) -> Self {
        self.with(503, &["timed-out"])
    }

    /// Of a route that reads the ledger.
    pub(super) fn reads(self) -> Self {
        self.waits().with(503, &["ledger-failed", "closing"])
    }

    /// Of a route whose change the lease policy decides and the ledger keeps. A policy may refuse anything with any code
    /// of the closed set; the built-in one uses few of them on each route.
    pub(super) fn decided(self) -> Self {
        let mut all = self.reads().internal().with(
            503,
            &["policy-failed", "policy-violation", "ledger-busy", "too-many-waiting", "ledger-lock-lost", "uncertain"],
        );
        for refusal in Refusal::ALL {
            all = all.with(refusal.status(), &[refusal.code()]);
            all.0.entry(refusal.status()).or_default().decided = true;
        }
        all.0.entry(503).or_default().decided = true;
        all
    }

    /// Of a route of workers, which looks at the primary again.
    pub(super) fn worker(self) -> Self {
        self.decided().with(409, &["primary-unmeasured", "not-primary"])
    }

    /// Of a route in which this daemon may fail.
    pub(super) fn internal(self) -> Self {
        self.with(500, &["internal"])
    }

    /// Each status with its answer.
    pub(super) fn answers(&self) -> impl Iterator<Item = (u16, Response)> + '_ {
        self.0.iter().map(|(status, codes)| (*status, codes.answer(*status)))
    }
}

impl Codes {
    fn answer(&self, status: u16) -> Response {
        let listed: Vec<String> = self.codes.iter().map(|code| format!("`{code}`")).collect();
        let description = match (listed.is_empty(), self.others) {
            (false, false) => listed.join(", "),
            (false, true) => format!("{}, and others", listed.join(", ")),
            _ => "Refused; `error` says why".to_owned(),
        };
        let values = self.codes.iter().map(|code| Value::from(*code));
        let code = ObjectBuilder::new().schema_type(Type::String);
        let code = if self.others { code.examples(values) } else { code.enum_values(Some(values)) };
        let schema = AllOfBuilder::new()
            .item(Ref::from_schema_name(RefusalBody::name()))
            .item(ObjectBuilder::new().property("error", code));
        let answer =
            ResponseBuilder::new().description(description).content("application/json", Content::new(Some(schema)));
        headers::on_refusal(answer, status, self.decided).build()
    }
}
