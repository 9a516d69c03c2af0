//! A request of NGINX: what it asks for, its memory, how it waits, its address, and the header fields of its response.

use std::cell::Cell;
use std::marker::PhantomData;
use std::net::IpAddr;
use std::ptr::NonNull;

use ngx::core::Status;
use ngx::ffi::{
    NGX_HTTP_CLIENT_CLOSED_REQUEST, NGX_HTTP_INTERNAL_SERVER_ERROR, ngx_event_t,
    ngx_handle_read_event, ngx_handle_write_event, ngx_http_arg, ngx_http_auth_basic_user,
    ngx_http_block_reading, ngx_http_complex_value_t, ngx_http_core_loc_conf_t,
    ngx_http_core_run_phases, ngx_http_discard_request_body, ngx_http_err_page_t,
    ngx_http_finalize_request, ngx_http_request_t, ngx_http_send_response, ngx_http_test_reading,
    ngx_int_t, ngx_list_push, ngx_palloc, ngx_pnalloc, ngx_pool_t, ngx_post_event,
    ngx_posted_events, ngx_str_t, ngx_table_elt_t, ngx_uint_t,
};
use ngx::http::{
    HttpModuleLocationConf, HttpModuleMainConf, HttpModuleServerConf, NgxHttpCoreModule,
};
use rate_limit_core::text::fields::Name;

use super::ip_address;
use crate::Module;
use crate::conf::{LocationConf, MainConf, ServerConf};
use crate::log::Log;
use crate::shm::Shared;

/// A request, in a callback of NGINX. It lives for `'r`, and so does what is kept in its pool.
///
/// A worker has one thread. While a callback runs, NGINX touches the request only if it is called, as its filters are
/// when a response is sent. So each method reads and writes through the pointer, and leaves no reference to a field of
/// NGINX's structures that NGINX may write to.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Request<'r> {
    r: NonNull<ngx_http_request_t>,
    /// Invariant: with a shorter lifetime, data that ends before the request could be put into its pool.
    lifetime: PhantomData<Cell<&'r ngx_http_request_t>>,
}

/// NGINX is out of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("out of memory")]
pub(crate) struct OutOfMemory;

/// The result of the handler of a phase.
#[must_use]
pub(crate) enum Step {
    /// The phase engine acts on this status.
    Return(Status),
    /// The request ends with this status. It is not returned: `satisfy any` would let another module overrule a 401 or
    /// 403.
    End(ngx_int_t),
}

impl Step {
    /// The phase goes on.
    pub(crate) const DECLINED: Self = Self::Return(Status::NGX_DECLINED);
    /// The request waits.
    pub(crate) const AGAIN: Self = Self::Return(Status::NGX_AGAIN);
    /// NGINX is out of memory, or could not register an event.
    pub(crate) const INTERNAL_ERROR: Self =
        Self::Return(Status(NGX_HTTP_INTERNAL_SERVER_ERROR as ngx_int_t));
}

impl<'r> Request<'r> {
    /// Runs the body of a callback. It can let nothing out of itself that lives as long as the request.
    ///
    /// # Safety
    /// `r` must be a request that NGINX passes to the callback.
    pub(crate) unsafe fn within<T>(
        r: *mut ngx_http_request_t,
        body: impl for<'a> FnOnce(Request<'a>) -> T,
    ) -> T {
        // SAFETY: NGINX passes a request, never null.
        let r = unsafe { NonNull::new_unchecked(r) };
        body(Request { r, lifetime: PhantomData })
    }

    /// Runs the handler of a phase.
    ///
    /// # Safety
    /// `r` must be the request that NGINX passes to it; it may be gone afterwards.
    pub(crate) unsafe fn handle(
        r: *mut ngx_http_request_t,
        handler: impl for<'a> FnOnce(Request<'a>) -> Step,
    ) -> ngx_int_t {
        // SAFETY: passed on. The phase engine ends requests in the same way, and does not touch this one again after
        // NGX_DONE; nor does the handler, which has returned.
        unsafe {
            match Self::within(r, handler) {
                Step::Return(status) => status.0,
                Step::End(status) => {
                    ngx_http_finalize_request(r, status);
                    Status::NGX_DONE.0
                }
            }
        }
    }

    /// The request for functions of NGINX. It is valid for `'r`.
    pub(crate) fn as_ptr(self) -> *mut ngx_http_request_t {
        self.r.as_ptr()
    }

    /// Reads a field of the request, or its configuration.
    fn read<T>(self, field: impl FnOnce(&ngx_http_request_t) -> T) -> T {
        // SAFETY: by `within`, the request is valid for `'r`. The reference ends here, before NGINX runs again.
        field(unsafe { self.r.as_ref() })
    }

    /// Whether it is the client's request, and not a subrequest.
    pub(crate) fn is_main(self) -> bool {
        self.main().r == self.r
    }

    /// The client's request that it is a part of.
    pub(crate) fn main(self) -> Self {
        // SAFETY: a request refers to its main request, which lives longer.
        let r = unsafe { NonNull::new_unchecked((*self.as_ptr()).main) };
        Self { r, ..self }
    }

    /// The log of its connection.
    pub(crate) fn log(self) -> Log<'r> {
        // SAFETY: a request has a connection, and a connection has a log; it outlives the request.
        unsafe { Log::new((*(*self.as_ptr()).connection).log) }
    }

    /// The event that resumes it, when it is posted. It lives as long as the connection.
    pub(crate) fn write_event(self) -> NonNull<ngx_event_t> {
        // SAFETY: a request has a connection, and a connection has two events.
        unsafe { NonNull::new_unchecked((*(*self.as_ptr()).connection).write) }
    }

    /// Its method, a bit of NGINX's.
    pub(crate) fn method(self) -> ngx_uint_t {
        self.read(|r| r.method)
    }

    /// The name of its method, and its query string.
    pub(crate) fn method_and_query(self) -> (&'r [u8], &'r [u8]) {
        // SAFETY: by `within`, the request is valid, and both lie in its memory.
        unsafe { (bytes((*self.as_ptr()).method_name), bytes((*self.as_ptr()).args)) }
    }

    /// The user that it names by the scheme Basic, as `$remote_user` has it.
    pub(crate) fn user(self) -> &'r [u8] {
        // SAFETY: NGINX's function reads the header fields of the request, and keeps what it has found in its memory.
        unsafe {
            match Status(ngx_http_auth_basic_user(self.as_ptr())) {
                Status::NGX_OK => bytes((*self.as_ptr()).headers_in.user),
                _ => b"",
            }
        }
    }

    /// The status of the error that it is an error page of, or 0.
    pub(crate) fn error_status(self) -> ngx_int_t {
        self.read(|r| r.err_status) as ngx_int_t
    }

    /// An argument of its query string.
    pub(crate) fn argument(self, name: &str) -> Option<&'r [u8]> {
        let (name, length) = (name.as_ptr().cast_mut(), name.len());
        let mut value = ngx_str_t::empty();
        // SAFETY: NGINX only reads the name. The value is a part of the query string, which lies in the memory of the request.
        unsafe {
            let status = ngx_http_arg(self.as_ptr(), name, length, &mut value);
            (status == Status::NGX_OK.0).then(|| bytes(value))
        }
    }

    /// The values of its header fields of this name, in whatever case it is written.
    pub(crate) fn header_fields(self, name: &str) -> impl Iterator<Item = String> {
        // SAFETY: ngx's type has the layout of NGINX's. The reference ends before NGINX runs again.
        let request = unsafe { &*self.as_ptr().cast::<ngx::http::Request>() };
        let fields = request.headers_in_iterator();
        let named = fields.filter(|(it, _)| it.as_bytes().eq_ignore_ascii_case(name.as_bytes()));
        let values: Vec<_> = named.map(|(_, value)| value.to_string_lossy().into_owned()).collect();
        values.into_iter()
    }

    /// Sends a response whose body is a text. What is returned ends the request.
    pub(crate) fn send(
        self,
        status: ngx_uint_t,
        content_type: &'static str,
        text: &str,
    ) -> Result<ngx_int_t, OutOfMemory> {
        let body = self.copy(text.as_bytes())?;
        // Things that the text tells may have been done.
        self.ignore_preconditions();
        let kind = ngx_str_t { data: content_type.as_ptr().cast_mut(), len: content_type.len() };
        // SAFETY: all zeroes but for the value is a complex value without variables. The text is in the pool of the
        // request, and the type is static. NGINX takes a type that is set already, and compares what is before its
        // parameters.
        unsafe {
            let out = &raw mut (*self.as_ptr()).headers_out;
            (*out).content_type = kind;
            (*out).content_type_len = content_type.find(';').unwrap_or(content_type.len());
            (*out).content_type_lowcase = std::ptr::null_mut();
            let mut complex: ngx_http_complex_value_t = std::mem::zeroed();
            complex.value = ngx_str_t { data: body.as_ptr().cast_mut(), len: body.len() };
            Ok(ngx_http_send_response(self.as_ptr(), status, std::ptr::null_mut(), &mut complex))
        }
    }

    /// Sets the status that the response has whatever its handler says.
    pub(crate) fn set_error_status(self, status: ngx_uint_t) {
        // SAFETY: by `within`, the request is valid for `'r`.
        unsafe { (*self.as_ptr()).err_status = status };
    }
}

/// The configuration, which lives as long as any request.
impl Request<'_> {
    /// The configuration of its location.
    pub(crate) fn location_conf(self) -> Option<&'static LocationConf> {
        self.read(Module::location_conf)
    }

    /// The configuration of its server.
    pub(crate) fn server_conf(self) -> Option<&'static ServerConf> {
        self.read(Module::server_conf)
    }

    /// The configuration of `http`.
    pub(crate) fn main_conf(self) -> Option<&'static MainConf> {
        self.read(Module::main_conf)
    }

    /// The memory that the workers of this machine share.
    pub(crate) fn memory(self) -> Option<&'static Shared> {
        self.main_conf()?.shared.get()
    }

    /// NGINX's own configuration of its location.
    pub(crate) fn location(self) -> Option<&'static ngx_http_core_loc_conf_t> {
        self.read(NgxHttpCoreModule::location_conf)
    }

    /// The error pages of its location.
    pub(crate) fn error_pages(self) -> &'static [ngx_http_err_page_t] {
        let pages = self.location().map_or(std::ptr::null_mut(), |location| location.error_pages);
        // SAFETY: if a location has error pages, they are the elements of this array.
        unsafe { pages.as_ref().map_or(&[], |pages| pages.as_slice()) }
    }
}

/// Memory.
impl<'r> Request<'r> {
    /// Keeps a value as long as the request lives. It is never dropped.
    pub(crate) fn keep<T: 'r>(self, value: T) -> Result<&'r T, OutOfMemory> {
        let place = self.allocate::<T>(1)?;
        // SAFETY: the memory is for one value, and nobody else's.
        unsafe {
            place.write(value);
            Ok(place.as_ref())
        }
    }

    /// Keeps values, at most `most`, as long as the request lives. They are never dropped.
    pub(crate) fn keep_all<T: 'r, E: From<OutOfMemory>>(
        self,
        most: usize,
        values: impl Iterator<Item = Result<T, E>>,
    ) -> Result<&'r [T], E> {
        let first = self.allocate::<T>(most)?;
        let mut count = 0;
        for value in values.take(most) {
            // SAFETY: the memory is for `most` values, and nobody else's.
            unsafe { first.add(count).write(value?) };
            count += 1;
        }
        // SAFETY: so many have been written.
        Ok(unsafe { std::slice::from_raw_parts(first.as_ptr(), count) })
    }

    /// A copy that lives as long as the request.
    pub(crate) fn copy(self, bytes: &[u8]) -> Result<&'r [u8], OutOfMemory> {
        // SAFETY: the pool is that of the request. The memory is as large as what is copied, and nobody else's.
        unsafe {
            let place = ngx_pnalloc(self.pool(), bytes.len()).cast::<u8>();
            let place = NonNull::new(place).ok_or(OutOfMemory)?;
            place.copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len());
            Ok(std::slice::from_raw_parts(place.as_ptr(), bytes.len()))
        }
    }

    fn allocate<T>(self, number: usize) -> Result<NonNull<T>, OutOfMemory> {
        const { assert!(align_of::<T>() <= align_of::<usize>()) };
        let size = size_of::<T>().saturating_mul(number);
        // SAFETY: the pool is that of the request. What NGINX allocates there is aligned for a word, which is enough
        // for this type.
        NonNull::new(unsafe { ngx_palloc(self.pool(), size) }.cast()).ok_or(OutOfMemory)
    }

    /// Its pool.
    pub(crate) fn pool(self) -> *mut ngx_pool_t {
        self.read(|r| r.pool)
    }
}

/// To wait. `limit_req` does the same.
impl Request<'_> {
    /// Suspends the request until it is resumed, or the client leaves. An action after the response does not need the client,
    /// who may have left: NGINX does not watch it then.
    pub(crate) fn suspend(self) -> Step {
        // SAFETY: a request has a connection, and a connection has two events.
        unsafe {
            let r = self.as_ptr();
            (*r).write_event_handler = Some(ngx_http_core_run_phases);
            if self.is_post_action() {
                return Step::AGAIN;
            }
            let read = (*(*r).connection).read;
            if (*read).ready() != 0 {
                ngx_post_event(read, &raw mut ngx_posted_events);
            } else if ngx_handle_read_event(read, 0) != Status::NGX_OK.0 {
                return Step::INTERNAL_ERROR;
            }
            // The rest of a body goes on being discarded.
            if !self.discards_body() {
                (*r).read_event_handler = Some(ngx_http_test_reading);
            }
        }
        Step::AGAIN
    }

    /// Lets a suspended request wait on. If the response before it has filled the socket, the write event is
    /// still registered, and select and poll would report it in each turn. Where a client has cancelled a stream of HTTP/3,
    /// nothing but that event shows it; what NGINX does after the response does not depend on the client.
    pub(crate) fn keep_waiting(self) -> Step {
        let event = self.write_event().as_ptr();
        // SAFETY: the event is that of the connection. NGINX registers it as it does for its own handlers.
        unsafe {
            if (*event).error() != 0 && !self.is_post_action() {
                return Step::End(NGX_HTTP_CLIENT_CLOSED_REQUEST as ngx_int_t);
            }
            match Status(ngx_handle_write_event(event, 0)) {
                Status::NGX_OK => Step::AGAIN,
                _ => Step::INTERNAL_ERROR,
            }
        }
    }

    /// Stops watching the client: the following phases do that themselves. Returns whether it could.
    pub(crate) fn stop_watching(self) -> bool {
        if self.discards_body() {
            return true;
        }
        // SAFETY: a request has a connection, and a connection has two events.
        unsafe {
            let r = self.as_ptr();
            (*r).read_event_handler = Some(ngx_http_block_reading);
            ngx_handle_read_event((*(*r).connection).read, 0) == Status::NGX_OK.0
        }
    }
}

/// The bytes of a string of NGINX.
///
/// # Safety
/// They must live for `'a`.
pub(crate) unsafe fn bytes<'a>(text: ngx_str_t) -> &'a [u8] {
    match text.len {
        0 => b"",
        // SAFETY: passed on.
        len => unsafe { std::slice::from_raw_parts(text.data, len) },
    }
}

impl<'r> Request<'r> {
    /// Sets a header field in place of any of the same name.
    pub(crate) fn set_field(
        self,
        name: &'static Name,
        value: &'static str,
    ) -> Result<(), OutOfMemory> {
        self.remove_fields(|other| other.eq_ignore_ascii_case(name.lower.as_bytes()));
        self.push_field(name, value.as_bytes())
    }

    /// Removes header fields of these names, which an upstream may have sent.
    pub(crate) fn remove_fields(self, is_such: impl Fn(&[u8]) -> bool) {
        // SAFETY: the request is valid, and so are the elements of its list of header fields.
        unsafe {
            let mut part = &raw mut (*self.as_ptr()).headers_out.headers.part;
            // Where the first part is empty there are no others.
            if (*part).nelts == 0 {
                return;
            }
            while !part.is_null() {
                let elements = (*part).elts.cast::<ngx_table_elt_t>();
                for index in 0..(*part).nelts {
                    let field = elements.add(index);
                    if is_such((*field).key.as_bytes()) {
                        (*field).hash = 0;
                    }
                }
                part = (*part).next;
            }
        }
    }

    /// Adds a header field.
    pub(crate) fn push_field(
        self,
        name: &'static Name,
        value: &'r [u8],
    ) -> Result<(), OutOfMemory> {
        // SAFETY: the request is valid, and the element is a new one, which nothing has been written to: so no reference
        // to it is made. Names are static, and the value lives as long as the request. NGINX writes to neither.
        unsafe {
            let headers = &raw mut (*self.as_ptr()).headers_out.headers;
            let field = ngx_list_push(headers).cast::<ngx_table_elt_t>();
            if field.is_null() {
                return Err(OutOfMemory);
            }
            (*field).hash = 1;
            (*field).key = ngx_str_t { data: name.text.as_ptr().cast_mut(), len: name.text.len() };
            (*field).value = ngx_str_t { data: value.as_ptr().cast_mut(), len: value.len() };
            (*field).lowcase_key = name.lower.as_ptr().cast_mut();
            #[cfg(nginx_header_next)]
            {
                (*field).next = std::ptr::null_mut();
            }
        }
        Ok(())
    }

    /// The address of the client, and its text, as variables show it; `None` for a client of a unix socket.
    pub(crate) fn address(self) -> Option<(IpAddr, &'r [u8])> {
        // SAFETY: the connection of a request has an address of the family that it names, and a text of it, which
        // lives as long as the request.
        unsafe {
            let connection = (*self.as_ptr()).connection;
            Some((ip_address((*connection).sockaddr)?.ip(), bytes((*connection).addr_text)))
        }
    }
}

impl Request<'_> {
    /// Has NGINX discard the content of the request. Fails with the status that ends the request.
    pub(crate) fn discard_body(self) -> Result<(), ngx_int_t> {
        // SAFETY: the request is one that NGINX has passed to its content handler.
        match unsafe { ngx_http_discard_request_body(self.as_ptr()) } {
            status if status == Status::NGX_OK.0 => Ok(()),
            status => Err(status),
        }
    }

    /// Suspends the request until it is resumed, or the client leaves: then NGINX runs the content handler again. What
    /// is returned is to be returned by the handler. NGINX finalizes the request with it, which ends it if it is not
    /// held.
    pub(crate) fn suspend_content(self) -> ngx_int_t {
        for step in [self.suspend(), self.keep_waiting()] {
            match step {
                Step::Return(Status::NGX_AGAIN) => (),
                Step::Return(Status(status)) | Step::End(status) => return status,
            }
        }
        self.hold();
        Status::NGX_DONE.0
    }
}
