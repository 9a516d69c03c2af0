//! Doubts about a line: it is valid and rarely means what it says, so that a warning says what it does.

use ngx::ffi::{ngx_conf_t, ngx_hash_key_t, ngx_http_variable_t};
use ngx::http::{HttpModuleMainConf, NgxHttpCoreModule};

use super::Words;
use crate::conf::{Limit, Phase, has_variable, variable};
use crate::directives::directive::{Directive, text};

/// Logs all doubts about a line as one warning.
pub(super) fn warn(line: &mut Directive<'_>, key: &str, words: &Words, limit: &Limit) {
    let doubts = [
        unverified_user(line, limit),
        name_as_key(line.cf, key),
        forwarded_key(key),
        excessive_cost(limit),
        excessive_delay(limit),
    ];
    let doubts: Vec<_> = doubts.into_iter().flatten().chain(chosen_by_client(words)).collect();
    if !doubts.is_empty() {
        line.warn(&doubts.join("; "));
    }
}

fn unverified_user(line: &Directive<'_>, limit: &Limit) -> Option<String> {
    let name = "remote_user";
    let is_used =
        line.arguments().any(|word| text(word).is_ok_and(|word| has_variable(word, name)));
    (is_used && limit.phase() == Phase::Access).then(|| {
        format!(
            "\"${name}\" is not verified before the access checks have passed: add \"after=auth\""
        )
    })
}

/// A variable's `$` is forgotten.
fn name_as_key(cf: &ngx_conf_t, key: &str) -> Option<String> {
    is_variable(cf, key).then(|| {
        format!("the key \"{key}\" is a text, one for all clients: the variable is \"${key}\"")
    })
}

fn forwarded_key(key: &str) -> Option<String> {
    let name = "http_x_forwarded_for";
    has_variable(key, name).then(|| {
        format!(
            "\"${name}\" is whatever the client writes, a new key for each request: use the client's \
             address, with \"set_real_ip_from\" behind a proxy"
        )
    })
}

fn excessive_cost(limit: &Limit) -> Option<String> {
    let ((cost, most), name) = (limit.excessive_cost()?, limit.name());
    Some(format!(
        "\"cost={cost}\" is above all that the limit \"{name}\" can hold, {most}: every request will be \
         rejected"
    ))
}

fn excessive_delay(limit: &Limit) -> Option<String> {
    let (delay, burst) = limit.excessive_delay()?;
    Some(format!(
        "\"delay={delay}\" is above \"burst={burst}\": no request will be delayed, as with \"nodelay\""
    ))
}

/// The numbers that a request brings along.
fn chosen_by_client(words: &Words) -> impl Iterator<Item = String> {
    let numbers = [
        ("rate", words.rate),
        ("capacity", words.capacity),
        ("burst", words.burst),
        ("cost", words.cost),
    ];
    numbers.into_iter().filter_map(|(parameter, value)| {
        let (value, name) = (value?, variable(value?)?.to_ascii_lowercase());
        let is_written = ["arg_", "cookie_", "http_"].iter().any(|prefix| name.starts_with(prefix));
        // An upload may cost as much as it is long.
        let is_length = name == "content_length" && parameter != "cost";
        (is_written || is_length).then(|| {
            format!("\"{parameter}={value}\" is whatever the client writes: use a \"map\" of it")
        })
    })
}

/// Whether a variable of this name is known where the line stands.
fn is_variable(cf: &ngx_conf_t, name: &str) -> bool {
    let Some(core) = NgxHttpCoreModule::main_conf(cf) else { return false };
    let name = name.as_bytes();
    // SAFETY: while a configuration is read its variables are arrays of these types, of which the first
    // one lies in a table that is freed later.
    unsafe {
        let prefixes = core.prefix_variables.as_slice::<ngx_http_variable_t>();
        let whole = core.variables_keys.as_ref().map(|it| it.keys.as_slice::<ngx_hash_key_t>());
        whole.is_some_and(|keys| keys.iter().any(|it| it.key.as_bytes() == name))
            || prefixes.iter().any(|it| name.starts_with(it.name.as_bytes()))
    }
}
