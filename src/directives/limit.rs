//! `rate_limit_redis`.

use std::rc::Rc;

use rate_limit_core::conf::limit::{LimitError, LimitWords, is_off, twice};

use super::reader::{ConfError, Reader};
use crate::conf::{BindError, ComplexValue, LimitConf, LocationConf};

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
    let limits = conf.limits.get_or_insert_default();
    let others = limits.iter().map(|other| (&other.directive, other.place.as_str()));
    if let Some(doubt) = twice(&reader.line, limit.name(), others) {
        reader.cf.warn(doubt);
    }
    let index = limits.partition_point(|other| other.line.phase <= limit.line.phase);
    limits.insert(index, Rc::new(limit));
    Ok(())
}

fn read(reader: &mut Reader<'_>) -> Result<LimitConf, ConfError> {
    let words = LimitWords::read(&reader.line)?;
    let line =
        words.compile(|text| ComplexValue::compile(reader.cf, text).map_err(ConfError::from))?;
    if let Some(doubts) = words.doubts(&line, |name| reader.cf.has_variable(name)) {
        reader.cf.warn(doubts);
    }
    let place = reader.cf.place();
    let line = reader.main()?.define(line, &place).map_err(BindError::from)?;
    Ok(LimitConf::new(reader.line.clone(), line, place))
}
