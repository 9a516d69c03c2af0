//! A request in its content handler.

use ngx::core::Status;
use ngx::ffi::{ngx_http_discard_request_body, ngx_int_t};

use super::{Request, Step};

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
