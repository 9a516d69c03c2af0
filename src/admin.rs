//! The admin interface.
//!
//! A client of a limit is looked up and changed by a script in Redis: until the reply comes the request is suspended. Then
//! NGINX runs the handler again, which finds what was submitted, and answers.

use std::borrow::Cow;

use ngx::ffi::{NGX_HTTP_INTERNAL_SERVER_ERROR, NGX_HTTP_OK, ngx_http_request_t, ngx_int_t};
use once_cell::sync::Lazy;
use rate_limit_core::admin::{AdminError, METHODS, Management, Operation};
use rate_limit_core::charge::Charge;
use rate_limit_core::client::Error;
use rate_limit_core::conf::LogKey;
use rate_limit_core::manage::{Change, ClientState};
use rate_limit_core::rate::MILLISECOND;
use rate_limit_core::text::admin::{self, HTML};
use rate_limit_core::text::log::{Escaped, ShownKey, shortened_hmac};
use rate_limit_core::text::metrics::PageForm;
use rate_limit_core::text::policy;
use rate_limit_core::top::TopKey;

use crate::conf::Bound;
use crate::nginx::{OutOfMemory, Request};
use crate::page;

mod pending;

use pending::Pending;

/// The content security policy of the page for a browser.
static POLICY: Lazy<String> = Lazy::new(|| policy(HTML));

const INTERNAL_ERROR: ngx_int_t = NGX_HTTP_INTERNAL_SERVER_ERROR as ngx_int_t;

/// The content handler of the admin interface.
pub(crate) unsafe extern "C" fn handle(r: *mut ngx_http_request_t) -> ngx_int_t {
    // SAFETY: NGINX passes a request.
    unsafe { Request::within(r, respond) }.unwrap_or(INTERNAL_ERROR)
}

/// Answers, or has the request wait for Redis.
fn respond(r: Request<'_>) -> Result<ngx_int_t, OutOfMemory> {
    let pending = r.is_main().then(|| Pending::find(r)).flatten();
    if pending.is_none()
        && let Err(status) = r.discard_body()
    {
        return Ok(status);
    }
    if page::is_read(r)
        && PageForm::accepted(&[PageForm::Json, PageForm::Html], &page::accept(r)) == PageForm::Html
    {
        return page::send(r, NGX_HTTP_OK as u16, PageForm::Html, &POLICY, HTML);
    }
    let limits = r.main_conf().map(|main| main.managed()).unwrap_or_default();
    let (method, query) = r.method_and_query();
    match (Operation::read(method, query, &limits), pending) {
        (Ok(Operation::List), _) => answer(r, &admin::limits(&limits)),
        (Ok(Operation::Top(limit)), _) => {
            answer(r, &admin::top(&most_rejected(r, limit.definition.name)))
        }
        (Ok(Operation::Client(management)), None) => submit(r, &management),
        (Ok(Operation::Client(management)), Some(pending)) => resume(r, &management, pending),
        (Err(error), _) => refuse(r, &error),
    }
}

fn answer(r: Request<'_>, text: &str) -> Result<ngx_int_t, OutOfMemory> {
    page::send(r, NGX_HTTP_OK as u16, PageForm::Json, "", text)
}

fn refuse(r: Request<'_>, error: &AdminError) -> Result<ngx_int_t, OutOfMemory> {
    if *error == AdminError::Method {
        r.set_field(&page::ALLOW, METHODS)?;
    }
    page::send(r, error.status(), PageForm::Json, "", &admin::error(error))
}

/// Submits the operation that is requested to the client of the limit's store.
fn submit(r: Request<'_>, management: &Management<'_>) -> Result<ngx_int_t, OutOfMemory> {
    // NGINX resumes the request of the client, not a part of it.
    if !r.is_main() {
        return refuse(r, &AdminError::Subrequest);
    }
    let bound = bound(r, management);
    let driver = bound.and_then(|bound| r.main_conf()?.driver(bound.store));
    let timeout = r.location_conf().map(|conf| conf.policy.timeout.saturating_mul(MILLISECOND));
    let (Some(bound), Some(driver), Some(timeout)) = (bound, driver, timeout) else {
        return Ok(INTERNAL_ERROR);
    };
    let key = redis_key(bound, &management.key);
    let charge = Charge::new(&bound.template, &key, &management.quota, 1);
    let pending = Pending::create(r, change_for_log(r, management)?)?;
    match pending.submit(r, driver, &charge, management.change, timeout) {
        true => Ok(r.suspend_content()),
        false => resume(r, management, pending),
    }
}

/// Answers, if the outcome is known.
fn resume(
    r: Request<'_>,
    management: &Management<'_>,
    pending: &Pending<'_>,
) -> Result<ngx_int_t, OutOfMemory> {
    let Some(outcome) = pending.take_outcome() else { return Ok(r.suspend_content()) };
    match update_machine(r, management, outcome) {
        _ if !r.stop_watching() => Ok(INTERNAL_ERROR),
        Ok(state) => answer(r, &admin::client(management, &state)),
        Err(error) => refuse(r, &AdminError::of_redis(error, management.change)),
    }
}

/// The limit of an operation, as it is bound to its store.
fn bound(r: Request<'_>, management: &Management<'_>) -> Option<&'static Bound> {
    r.main_conf()?.limit(management.limit.definition.name)?.bound()
}

/// The key in Redis, behind the name of the limit, of a client of this key, which is a digest already if it is long.
fn redis_key<'k>(limit: &Bound, key: &'k [u8]) -> Cow<'k, [u8]> {
    match &limit.key_hmac {
        Some(hmac) => hmac.hex(key).into_bytes().into(),
        None => key.into(),
    }
}

/// The clients of the limit of this name that were rejected most on this machine; with `key_hmac` the beginnings of the
/// HMACs of their keys.
fn most_rejected(r: Request<'_>, limit: &str) -> Vec<TopKey> {
    let Some(main) = r.main_conf() else { return Vec::new() };
    let has_hmac = main.limit(limit).is_some_and(|limit| limit.key_hmac().is_some());
    let mut keys = main.top.get().map(|top| top.list(limit)).unwrap_or_default();
    for it in keys.iter_mut().filter(|_| has_hmac) {
        let shown = shortened_hmac(&it.key).to_string();
        it.key = shown.into_bytes();
    }
    keys
}

/// Has this machine follow what was found of the client, or changed: so a change holds here at once. Returns the outcome for
/// this machine.
fn update_machine(
    r: Request<'_>,
    management: &Management<'_>,
    outcome: Result<ClientState, Error>,
) -> Result<ClientState, Error> {
    let Some((shared, limit)) = r.memory().zip(bound(r, management)) else { return outcome };
    let client = shared.client_digest(limit.fingerprint, &redis_key(limit, &management.key));
    if management.change != Change::Look {
        shared.end_denials(client);
    }
    let Management { quota, change, .. } = management;
    outcome.map(|state| shared.change_client(client, quota, change, state))
}

/// The text of a change for the log; `None` if there is no change. NGINX adds the address.
fn change_for_log<'r>(
    r: Request<'r>,
    management: &Management<'_>,
) -> Result<Option<&'r [u8]>, OutOfMemory> {
    if management.change == Change::Look {
        return Ok(None);
    }
    let limit = management.limit.definition.name;
    let bound = bound(r, management);
    let stored = bound.map(|bound| redis_key(bound, &management.key)).unwrap_or_default();
    let log_key = r.location_conf().map_or(LogKey::Off, |conf| conf.policy.log_key);
    let key = match (log_key, bound.and_then(|bound| bound.key_hmac.as_ref())) {
        (LogKey::On, _) => ShownKey::Own(&management.key),
        (LogKey::Hmac, Some(_)) => ShownKey::Hmac(&stored),
        (LogKey::Hmac, None) | (LogKey::Off, _) => ShownKey::Hidden,
    };
    let mut text = format!("{}, limit \"{limit}\"{key}", admin::described(management));
    let user = r.user();
    if !user.is_empty() {
        text += &format!(", user: \"{}\"", Escaped(user));
    }
    r.copy(text.as_bytes()).map(Some)
}
