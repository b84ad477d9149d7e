//! The checks that every request passes, in the order in which they answer; and the routes that are nothing else.

use super::answer::Answer;
use super::exchange::Exchange;
use super::route::{Access, Route};
use crate::error::ApiError;
use http::{HeaderMap, header};
use serde::Serialize;
use utoipa::ToSchema;
use warmhold_ledger::{Caller, PrimaryView};

/// 1: the primary's view. 2 and 3: the route, before any token. 4: the token. 5: its scope. 6: the primary, for writes.
pub(super) async fn pass(exchange: &mut Exchange) -> Result<Route, ApiError> {
    exchange.primary = exchange.control.options.primary.view().await;
    exchange.shown = exchange.primary.clone();
    let (place, route) = Route::find(&exchange.head.method, exchange.head.uri.path()).ok_or_else(|| {
        ApiError::not_found(format!("there is no {} here", exchange.head.method))
            .with_help("the routes are listed in docs/http.md; paths are taken as they are sent")
    })?;
    exchange.place = place;
    exchange.route = Some(route.name());
    exchange.help = route.help();
    let access = route.access();
    if access == Access::Anyone || (access == Access::Local && exchange.peer.is_loopback()) {
        return Ok(route);
    }
    let caller = authenticate(exchange)?;
    let admitted = access.admits(caller.scope);
    exchange.caller = Some(caller);
    if !admitted {
        return Err(ApiError::forbidden("forbidden", format!("this needs {}", access.describe())));
    }
    if access != Access::Known && exchange.control.is_stopping() {
        return Err(ApiError::unavailable("closing", "the daemon is ending; nothing was done").with_retry_after(1));
    }
    if route.needs_primary() {
        may_write(exchange)?;
    }
    Ok(route)
}

fn authenticate(exchange: &Exchange) -> Result<Caller, ApiError> {
    let bearer = bearer(&exchange.head.headers).ok_or_else(ApiError::unauthorized)?;
    match exchange.control.options.tokens.identify(bearer) {
        Ok(caller) => caller.ok_or_else(ApiError::unauthorized),
        Err(error) => {
            tracing::error!(request = %exchange.id, code = error.code(), %error, "machines are shut out");
            Err(ApiError::unavailable(
                "tokens-unreadable",
                "the machines' tokens can't be read now, so a machine can't be told from a stranger",
            )
            .with_help("the daemon's log says what is wrong with the file"))
        }
    }
}

/// The one bearer of the one authorization header.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let value = values.next()?.to_str().ok()?;
    if values.next().is_some() {
        return None;
    }
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim_matches(' ')).filter(|token| !token.is_empty())
}

fn may_write(exchange: &Exchange) -> Result<(), ApiError> {
    let view = exchange.primary.as_ref();
    let known = view.is_some_and(|view| view.known);
    let refused =
        if known { !view.is_some_and(|view| view.held_here) } else { exchange.control.options.require_primary };
    if refused { Err(not_primary(view)) } else { Ok(()) }
}

/// 409, with who is.
pub(super) fn not_primary(view: Option<&PrimaryView>) -> ApiError {
    let holder = view.and_then(|view| view.holder.clone());
    let generation = view.and_then(|view| view.generation);
    let message = match &holder {
        Some(holder) => format!("{holder} is the primary; only it may write"),
        None => "the primary is unknown, so nobody may write".to_owned(),
    };
    ApiError::conflict("not-primary", message).with("holder", holder).with("generation", generation)
}

/// Who the primary is.
#[derive(Serialize, ToSchema)]
pub(super) struct Primary {
    /// Its machine; null while it isn't known.
    #[schema(required = true)]
    holder: Option<String>,
    /// Its generation; null while it isn't known.
    #[schema(required = true)]
    generation: Option<u64>,
    /// Whether it is known.
    known: bool,
}

/// `GET /v1/primary`.
pub(super) fn primary(exchange: &Exchange) -> Result<Answer, ApiError> {
    let view = exchange.primary.as_ref().filter(|view| view.known);
    Answer::json(&Primary {
        holder: view.and_then(|view| view.holder.clone()),
        generation: view.and_then(|view| view.generation),
        known: view.is_some(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;
    use proptest::prelude::*;

    fn shown(values: &[&str]) -> Option<String> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(header::AUTHORIZATION, HeaderValue::from_str(value).unwrap());
        }
        bearer(&headers).map(str::to_owned)
    }

    #[test]
    fn one_bearer_or_none() {
        assert_eq!(shown(&["Bearer abc"]).as_deref(), Some("abc"));
        assert_eq!(shown(&["bearer  abc "]).as_deref(), Some("abc"));
        for none in [&[][..], &[""], &["Bearer"], &["Bearer "], &["Basic abc"], &["abc"], &["Bearer\tabc"]] {
            assert_eq!(shown(none), None, "{none:?}");
        }
        assert_eq!(shown(&["Bearer abc", "Bearer abc"]), None, "twice, even if equal");
        assert_eq!(shown(&["Bearer abc", "Basic x"]), None);
    }

    proptest! {
        #[test]
        fn no_header_does_harm(bytes in proptest::collection::vec(0x20_u8..=0xff, 0..40)) {
            if let Ok(value) = HeaderValue::from_bytes(&bytes) {
                let mut headers = HeaderMap::new();
                headers.insert(header::AUTHORIZATION, value);
                let _ = bearer(&headers);
            }
        }
    }
}
