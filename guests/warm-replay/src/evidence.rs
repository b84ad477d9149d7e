//! What a worker's verdict must hold to be of use, and what of it goes to the caller.

use crate::checks::{Unfit, key_equals};
use crate::provenance::short;
use serde_json::{Value, json};
use warmhold_sdk::json;
use warmhold_sdk::replay::{Candidate, Difference, Lease, ReplayInput, Reply};

/// Whether the verdict answers this request. That it is this lease's, and that every stream has its length and hash, is
/// the host's to check: it alone knows the nonce and saw the bytes.
///
/// # Errors
/// It doesn't, or the worker ran nothing.
pub fn check(verdict: &Value, input: &ReplayInput, of: &Candidate) -> Result<(), Unfit> {
    let text = |key: &str| verdict.get(key).and_then(Value::as_str);
    if let Some(refused) = verdict.get("refused").filter(|refused| !refused.is_null()) {
        let part = |key: &str| refused.get(key).and_then(Value::as_str).unwrap_or("unknown");
        let detail = format!("the worker refused: {}: {}", part("code"), part("message"));
        return Err(Unfit::new("exec-failed", detail));
    }
    let invalid = |what: &str| Unfit::new("invalid-result", format!("the worker's verdict {what}"));
    if verdict.get("protocol").and_then(Value::as_u64) != Some(u64::from(input.protocol)) {
        return Err(invalid("speaks another protocol"));
    }
    if text("workerId") != Some(&of.spec.worker_id) {
        return Err(invalid("is another worker's"));
    }
    if !verdict.get("key").is_some_and(|key| key_equals(key, &of.spec.key)) {
        return Err(invalid("has another key"));
    }
    if text("cutSha") != Some(&input.cut_sha) {
        return Err(invalid("is for another cut"));
    }
    let files = verdict.get("files").and_then(Value::as_array).ok_or_else(|| invalid("has no files"))?;
    let named = files.iter().map(|file| file.get("file").and_then(Value::as_str));
    if !named.eq(input.files.iter().map(|file| Some(file.as_str()))) {
        return Err(invalid("has other files than were asked for"));
    }
    Ok(())
}

/// The evidence of an observed replay.
#[must_use]
pub fn of<L: Lease>(reply: &Reply, verdict: &Value, of: &Candidate, held: &L, harmless: &[Difference]) -> Value {
    let field = |key: &str| verdict.get(key).cloned().unwrap_or_default();
    json!({
        "worker": {
            "id": of.spec.worker_id,
            "machine": of.host,
            "tier": of.tier,
            "pod": of.spec.name,
            "podUid": held.pod_uid(),
            "generation": held.generation(),
            "lease": short(&held.id()),
        },
        "passed": passed(verdict),
        "clean": verdict.get("clean") == Some(&Value::Bool(true)),
        "unclean": field("unclean"),
        "isolation": field("isolation"),
        "oomKills": field("oomKills"),
        "files": field("files"),
        "stdout": {"bytes": reply.out.bytes, "sha256": reply.out.sha256},
        "stderr": {"bytes": reply.err.bytes, "sha256": reply.err.sha256},
        "harmless": harmless
            .iter()
            .map(|difference| json!({"path": difference.path, "want": value(&difference.want), "got": value(&difference.got)}))
            .collect::<Vec<_>>(),
    })
}

fn value(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|_| Value::from(text))
}

/// Every file ran, and exited 0.
fn passed(verdict: &Value) -> bool {
    let file_passed = |file: &Value| {
        file.get("exit").and_then(json::whole) == Some(0) && absent(file.get("signal")) && absent(file.get("reason"))
    };
    verdict
        .get("files")
        .and_then(Value::as_array)
        .is_some_and(|files| !files.is_empty() && files.iter().all(file_passed))
}

fn absent(value: Option<&Value>) -> bool {
    value.is_none_or(Value::is_null)
}
