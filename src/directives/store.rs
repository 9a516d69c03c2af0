//! The block `rate_limit_redis_store`, and the URL of a store without one.

use std::ffi::{c_char, c_void};
use std::rc::Rc;

use ngx::ffi::{NGX_LOG_WARN, ngx_command_t, ngx_conf_t};
use rate_limit_core::conf::store::{
    StoreError, StoreLine, StoreLines, StoreSets, line_doubt, password,
};
use rate_limit_core::conf::text;
use rate_limit_core::limit::is_name;

use super::reader::{self, ConfError, Reader};
use super::server;
use crate::client::tls::{Tls, supported};
use crate::conf::{Keys, Store};
use crate::log::log;
use crate::nginx::Conf;
use crate::secret_file;

/// The index of the store at `url`, which is added if it is new.
pub(super) fn at(cf: &mut Conf, url: &str) -> Result<usize, ConfError> {
    if let Some(index) = reader::main(cf)?.find(url) {
        return Ok(index);
    }
    let server = server::read(cf, url, "rate_limit_redis_pass")?;
    let store = build(&StoreLines::of(server), cf, url)?;
    Ok(reader::main(cf)?.add_store(store))
}

/// Reads the block `rate_limit_redis_store`: NGINX passes its lines to [`read_line`].
pub(super) fn read_block(reader: &mut Reader<'_>) -> Result<(), ConfError> {
    let (name, place) = (reader.line.value()?, reader.cf.place());
    let mut lines = StoreLines::default();
    reader.cf.read_block(read_line, &mut lines).ok_or(ConfError::Logged)?;
    add_block(reader.cf, name, &lines, place)
}

unsafe extern "C" fn read_line(
    cf: *mut ngx_conf_t,
    _command: *mut ngx_command_t,
    lines: *mut c_void,
) -> *mut c_char {
    // SAFETY: NGINX passes its configuration context, and the lines of `read_block`. Nothing refers to
    // them while the lines of another file are passed to this function.
    unsafe {
        reader::run(Conf::new(cf), |reader| match is_include(reader)? {
            true => reader.cf.include().ok_or(ConfError::Logged),
            false => read(&mut *lines.cast::<StoreLines<'static>>(), reader),
        })
    }
}

/// Whether a line is NGINX's `include`, with its argument: in a block that has a function of its own
/// NGINX leaves that to the function.
fn is_include(reader: &Reader<'_>) -> Result<bool, ConfError> {
    let is_include = reader.line.name()? == "include";
    if is_include {
        reader.line.value()?;
    }
    Ok(is_include)
}

/// Reads one line of the block.
fn read(lines: &mut StoreLines<'static>, reader: &mut Reader<'_>) -> Result<(), ConfError> {
    let name = reader.line.name()?;
    if name.starts_with("ssl_") {
        supported().map_err(ConfError::Tls)?;
    }
    match StoreLine::find(name)?.sets {
        StoreSets::Server => {
            let server = server::read(reader.cf, reader.line.value()?, "server")?;
            lines.add_server(server, reader.cf.place());
        }
        StoreSets::PasswordFile => {
            let path = full_path(reader)?;
            lines.set_password_file(path, read_password(path)?)?;
        }
        StoreSets::KeyHmac => {
            let path = full_path(reader)?;
            let content = secret_file::read(path).map_err(not_read("key_hmac", path))?;
            lines.set_key_hmac(&reader.line, path, &content)?;
        }
        StoreSets::Value(read) => {
            read(lines, &reader.line)?;
            if let Some(doubt) = line_doubt(&reader.line) {
                reader.cf.warn(doubt);
            }
        }
    }
    Ok(())
}

/// Adds the store of a block, which begins at this place.
fn add_block(
    cf: &mut Conf,
    name: &'static str,
    lines: &StoreLines<'static>,
    place: String,
) -> Result<(), ConfError> {
    if !is_name(name) {
        return Err(StoreError::Name(name.to_owned()).into());
    }
    if reader::main(cf)?.find(name).is_some() {
        return Err(StoreError::Duplicate(name.to_owned()).into());
    }
    let wrong = |error| ConfError::Block { name: name.to_owned(), error: Box::new(error) };
    let store = build(lines, cf, name).map_err(wrong)?;
    let main = reader::main(cf)?;
    main.add_store(store);
    main.blocks.push((name, place));
    Ok(())
}

/// Warns of each block that no `rate_limit_redis_pass` names. All of the configuration has been read.
pub(super) fn warn_of_unnamed(cf: &mut Conf) -> Result<(), ConfError> {
    let main = reader::main(cf)?;
    let (blocks, passes) = (std::mem::take(&mut main.blocks), std::mem::take(&mut main.passes));
    for (name, place) in blocks.iter().filter(|(name, _)| !passes.contains(name)) {
        log!(
            NGX_LOG_WARN,
            cf.log(),
            "no limit uses the \"rate_limit_redis_store\" \"{name}\", as no \"rate_limit_redis_pass\" names it, \
             in {place}"
        );
    }
    Ok(())
}

/// The store of all lines.
fn build(lines: &StoreLines<'static>, cf: &mut Conf, reference: &str) -> Result<Store, ConfError> {
    let config = lines.config(reference)?;
    let tls = lines.tls()?.map(|settings| Tls::new(cf, settings).map_err(ConfError::Tls));
    let tls = tls.transpose()?.map(Rc::new);
    for doubt in lines.doubts() {
        log!(NGX_LOG_WARN, cf.log(), "{doubt}");
    }
    let keys =
        Keys { prefix: lines.prefix().to_owned(), hmac: lines.key_hmac().cloned().map(Rc::new) };
    let password_file = lines.password_file().map(str::to_owned);
    Ok(Store::new(reference.to_owned(), keys, config, tls, password_file))
}

/// The path of the file that a line names, which is relative to the configuration.
fn full_path(reader: &mut Reader<'_>) -> Result<&'static str, ConfError> {
    let path = reader.cf.full_path(reader.line.nonempty_value()?).ok_or(ConfError::OutOfMemory)?;
    Ok(text(path)?)
}

/// Reads a password from the first line of a file.
fn read_password(path: &str) -> Result<String, ConfError> {
    let content = secret_file::read_text(path).map_err(not_read("password_file", path))?;
    let password = password(&content).ok_or_else(|| ConfError::NoPassword(path.to_owned()))?;
    Ok(password.to_owned())
}

/// The error that the file of a line cannot be read.
fn not_read(line: &'static str, path: &str) -> impl FnOnce(std::io::Error) -> ConfError {
    move |error| ConfError::File { line, path: path.to_owned(), error }
}
