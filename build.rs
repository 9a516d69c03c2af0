//! Tells the compiler which NGINX it builds for.

use std::env;

/// NGINX versions at which something that this module touches changed.
const VERSIONS: &[(&str, u64)] = &[("nginx_header_next", 1_023_000)];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    features();
    versions();
    bit_fields();
}

/// `cfg(ngx_feature = "…")`, as nginx-sys found it in the configured tree.
fn features() {
    println!("cargo::rerun-if-env-changed=DEP_NGINX_FEATURES");
    println!("cargo::rerun-if-env-changed=DEP_NGINX_FEATURES_CHECK");
    let known = env::var("DEP_NGINX_FEATURES_CHECK").unwrap_or_else(|_| "any()".to_owned());
    println!("cargo::rustc-check-cfg=cfg(ngx_feature, values({known}))");
    for feature in env::var("DEP_NGINX_FEATURES").unwrap_or_default().split(',') {
        println!("cargo::rustc-cfg=ngx_feature=\"{}\"", feature.trim());
    }
}

fn versions() {
    println!("cargo::rerun-if-env-changed=DEP_NGINX_VERSION_NUMBER");
    let number = env::var("DEP_NGINX_VERSION_NUMBER").ok().and_then(|text| text.parse().ok());
    for (name, since) in VERSIONS {
        println!("cargo::rustc-check-cfg=cfg({name})");
        if number.is_some_and(|number: u64| number >= *since) {
            println!("cargo::rustc-cfg={name}");
        }
    }
}

/// The functions of `src/nginx/bits.c`, compiled as NGINX was.
fn bit_fields() {
    println!("cargo::rerun-if-changed=src/nginx/bits.c");
    println!("cargo::rerun-if-env-changed=DEP_NGINX_INCLUDE");
    let include = env::var_os("DEP_NGINX_INCLUDE").unwrap_or_default();
    cc::Build::new().file("src/nginx/bits.c").includes(env::split_paths(&include)).compile("bits");
}
