//! The text that clients and administrators read: header fields, bodies, metrics, log lines.

/// A page for a browser, of what all pages have in common and what is in the folder of this name.
macro_rules! page {
    ($folder:literal) => {
        concat!(
            include_str!("page/head.html"),
            "<style>\n",
            include_str!("page/base.css"),
            include_str!(concat!($folder, "/page/style.css")),
            "</style>\n</head>\n<body>\n",
            include_str!(concat!($folder, "/page/body.html")),
            "<script>\n",
            include_str!("page/base.js"),
            include_str!(concat!($folder, "/page/script.js")),
            "</script>\n</body>\n</html>\n",
        )
    };
}

pub mod admin;
pub mod body;
pub mod fields;
mod json;
pub mod log;
pub mod metrics;
pub mod number;
mod policy;

pub use policy::policy;
