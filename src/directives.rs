//! The directives: the table of the pure crate, as NGINX reads it.

use std::ffi::{c_char, c_void};
use std::ptr;

use ngx::ffi::{
    NGX_CONF_1MORE, NGX_CONF_BLOCK, NGX_CONF_NOARGS, NGX_CONF_TAKE1, NGX_CONF_TAKE12,
    NGX_HTTP_LOC_CONF, NGX_HTTP_LOC_CONF_OFFSET, NGX_HTTP_MAIN_CONF, NGX_HTTP_MAIN_CONF_OFFSET,
    NGX_HTTP_SRV_CONF, ngx_command_t, ngx_conf_t, ngx_str_t, ngx_uint_t,
};
use rate_limit_core::conf::{
    Arguments, Contexts, DIRECTIVES, Directive, DirectiveError, Row, SetPolicy, Sets,
};
use rate_limit_core::limit::is_name;

use crate::conf::{LocationConf, MainConf, Pass};
use crate::nginx::Conf;

mod access;
mod limit;
mod merge;
mod reader;
mod server;
mod store;

pub(crate) use merge::{complete, merge_location};
use reader::{ConfError, Reader, run};

/// Every directive, and the end of the table.
pub(crate) static mut COMMANDS: [ngx_command_t; DIRECTIVES.len() + 1] = {
    let mut commands = [const { ngx_command_t::empty() }; DIRECTIVES.len() + 1];
    let (mut rows, mut left): (_, &mut [ngx_command_t]) = (DIRECTIVES, &mut commands);
    while let ([row, rows_left @ ..], [command, commands_left @ ..]) = (rows, left) {
        *command = command_of(row);
        (rows, left) = (rows_left, commands_left);
    }
    commands
};

const fn command_of(row: &Row) -> ngx_command_t {
    let contexts = match row.contexts {
        Contexts::Everywhere => NGX_HTTP_MAIN_CONF | NGX_HTTP_SRV_CONF | NGX_HTTP_LOC_CONF,
        Contexts::Http => NGX_HTTP_MAIN_CONF,
        Contexts::Location => NGX_HTTP_LOC_CONF,
    };
    let arguments = match row.arguments {
        Arguments::None => NGX_CONF_NOARGS,
        Arguments::AtMostOne => NGX_CONF_NOARGS | NGX_CONF_TAKE1,
        Arguments::One => NGX_CONF_TAKE1,
        Arguments::OneOrTwo => NGX_CONF_TAKE12,
        Arguments::OneOrMore => NGX_CONF_1MORE,
        Arguments::OneAndBlock => NGX_CONF_TAKE1 | NGX_CONF_BLOCK,
    };
    let conf = match row.sets {
        Sets::Store | Sets::Memory { .. } | Sets::Top { .. } => NGX_HTTP_MAIN_CONF_OFFSET,
        Sets::Limit | Sets::Pass { .. } | Sets::Policy(_) | Sets::Page(_) | Sets::Admin => {
            NGX_HTTP_LOC_CONF_OFFSET
        }
    };
    ngx_command_t {
        name: ngx_str_t { data: row.name.as_ptr().cast_mut().cast(), len: row.name.count_bytes() },
        type_: (contexts | arguments) as ngx_uint_t,
        set: Some(set),
        conf,
        offset: 0,
        post: ptr::null_mut(),
    }
}

/// Sets what a directive of the table says.
unsafe extern "C" fn set(
    cf: *mut ngx_conf_t,
    _command: *mut ngx_command_t,
    conf: *mut c_void,
) -> *mut c_char {
    // SAFETY: NGINX passes its configuration context.
    let cf = unsafe { Conf::new(cf) };
    // SAFETY: NGINX passes the configuration that the command's `conf` stands for. For the directives that use this it is
    // that of the level at which the directive stands, which create_loc_conf made. They use it once, and nothing else refers
    // to it.
    let level = || unsafe { &mut *conf.cast::<LocationConf>() };
    run(cf, |reader| match reader.row()?.sets {
        Sets::Store => store::read_block(reader),
        Sets::Memory { read, .. } => set_number(reader, read, |main| &mut main.memory_size),
        Sets::Top { read, .. } => set_number(reader, read, |main| &mut main.top_keys),
        Sets::Limit => limit::add(level(), reader),
        Sets::Pass { .. } => set_pass(level(), reader),
        Sets::Policy(set) => set_policy(level(), reader, set),
        Sets::Page(set) => set_page(level(), reader, set),
        Sets::Admin => access::set_admin(level(), reader),
    })
}

/// Sets a number of `http`.
fn set_number(
    reader: &mut Reader<'_>,
    read: fn(&Directive<'_>) -> Result<u64, DirectiveError>,
    place: fn(&mut MainConf) -> &mut Option<usize>,
) -> Result<(), ConfError> {
    let number = read(&reader.line)? as usize;
    let Reader { cf, line } = reader;
    Ok(line.once(place(reader::main(cf)?), number)?)
}

fn set_pass(conf: &mut LocationConf, reader: &mut Reader<'_>) -> Result<(), ConfError> {
    let reference = reader.line.value()?;
    let pass = match is_name(reference) {
        true => {
            reader.main()?.passes.insert(reference);
            Pass::Named(reference, reader.cf.place())
        }
        // Now, so that errors name this line.
        false => Pass::Store(store::at(reader.cf, reference)?),
    };
    Ok(reader.line.once(&mut conf.pass, pass)?)
}

fn set_policy(
    conf: &mut LocationConf,
    reader: &mut Reader<'_>,
    set: SetPolicy,
) -> Result<(), ConfError> {
    if let Some(doubt) = set(&mut conf.level, &reader.line)? {
        reader.cf.warn(doubt);
    }
    Ok(())
}

/// Makes the location the metrics page.
fn set_page(
    conf: &mut LocationConf,
    reader: &mut Reader<'_>,
    set: SetPolicy,
) -> Result<(), ConfError> {
    set_policy(conf, reader, set)?;
    if conf.page.is_some() {
        let directive = reader.line.name()?;
        return Err(ConfError::SecondPage { directive, other: "rate_limit_redis_admin" });
    }
    conf.page = Some(crate::metrics::handle);
    reader.location()?.handler = conf.page;
    Ok(())
}
