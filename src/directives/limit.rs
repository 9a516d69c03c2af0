//! `rate_limit_redis`.

use std::rc::Rc;

use ngx::ffi::{ngx_conf_t, ngx_hash_key_t, ngx_http_variable_t};
use ngx::http::{HttpModuleMainConf, NgxHttpCoreModule};
use rate_limit_core::conf::limit::{LimitError, LimitWords, is_off};

use super::reader::{ConfError, Reader};
use crate::conf::{ComplexValue, LimitConf, LocationConf};

/// Adds the limit of a line, or none for `off`.
pub(super) fn add(conf: &mut LocationConf, reader: &mut Reader<'_>) -> Result<(), ConfError> {
    if is_off(&reader.line)? {
        return match conf.limits.replace(Vec::new()) {
            None => Ok(()),
            Some(_) => Err(LimitError::OffBesideAnother.into()),
        };
    }
    if conf.limits.as_ref().is_some_and(Vec::is_empty) {
        return Err(LimitError::OffBesideAnother.into());
    }
    let limit = read(reader)?;
    reader.main()?.define(&limit)?;
    let limits = conf.limits.get_or_insert_default();
    let index = limits.partition_point(|other| other.phase() <= limit.phase());
    limits.insert(index, Rc::new(limit));
    Ok(())
}

fn read(reader: &mut Reader<'_>) -> Result<LimitConf, ConfError> {
    let words = LimitWords::read(&reader.line)?;
    let line =
        words.compile(|text| ComplexValue::compile(reader.cf, text).map_err(ConfError::from))?;
    if let Some(doubts) = words.doubts(&line, |name| is_variable(reader.cf, name)) {
        reader.warn(&doubts);
    }
    Ok(LimitConf::new(line, reader.place()))
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
