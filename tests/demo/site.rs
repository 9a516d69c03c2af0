//! The directory of an nginx.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

/// The parts of a configuration that all nginx have in common.
pub struct Plan {
    /// The directory of the demo.
    pub directory: PathBuf,
    /// The path of the module.
    pub module: String,
    /// The directives that say where Redis is.
    pub store: String,
}

impl Plan {
    /// The directory of the nginx of this number.
    pub fn site(&self, number: usize) -> PathBuf {
        self.directory.join(format!("nginx-{number}"))
    }

    /// Makes the directory of an nginx, which listens on the port of its number. The first one has the page.
    pub fn lay_out(&self, number: usize, ports: &[u16]) -> io::Result<()> {
        let site = self.site(number);
        let modules = site.join("modules");
        fs::create_dir_all(&modules)?;
        symlink(&self.module, modules.join("ngx_http_rate_limit_redis_module.so"))?;
        if number == 0 {
            copy_page(&site.join("page"))?;
        }
        // The store's URL may hold a password.
        let mut options = OpenOptions::new();
        let file = options.write(true).create_new(true).mode(0o600).open(site.join("nginx.conf"));
        file?.write_all(self.configuration(&site, ports[number], ports)?.as_bytes())
    }

    /// `nginx-conf/demo.conf`, with the addresses of this demo. What a later one puts in is not looked at any more.
    fn configuration(&self, site: &Path, port: u16, ports: &[u16]) -> io::Result<String> {
        let origins: Vec<_> = ports.iter().map(|port| format!("http://127.0.0.1:{port}")).collect();
        let application = format!("unix:{}", site.join("application.sock").display());
        let text = fs::read_to_string("nginx-conf/demo.conf")?;
        Ok(text
            .replace("127.0.0.1:9080", &application)
            .replace("listen 8080", &format!("listen 127.0.0.1:{port}"))
            .replace("http://127.0.0.1:8080", &origins.join(" "))
            .replace("rate_limit_redis_pass redis://127.0.0.1:6379;", &self.store))
    }
}

/// Copies the page, and makes no link to it: nginx's workers need not be able to read the directory of this checkout.
fn copy_page(page: &Path) -> io::Result<()> {
    fs::create_dir(page)?;
    for entry in fs::read_dir("nginx-conf/demo")? {
        let entry = entry?;
        let copy = page.join(entry.file_name());
        fs::copy(entry.path(), &copy)?;
        fs::set_permissions(copy, fs::Permissions::from_mode(0o644))?;
    }
    Ok(())
}
