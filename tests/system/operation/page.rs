//! Steps in a browser that the tests of both pages take.

use harness::{Browser, Nginx};

/// Opens a page, and waits until an expression in JavaScript says that it is ready.
#[track_caller]
pub(super) fn visit(nginx: &Nginx, path: &str, is_ready: &str) -> Browser {
    let browser = Browser::start();
    browser.open(&nginx.url(path));
    browser.wait_for(is_ready);
    browser
}

/// The page can be read in both colour schemes, and on a phone without scrolling sideways.
#[track_caller]
pub(super) fn fits_everywhere(browser: &Browser) {
    for scheme in ["light", "dark"] {
        browser.prefer(scheme);
        let (texts, faint) = browser.faint_texts();
        assert!(texts > 30, "only {texts} texts");
        assert_eq!(faint, Vec::<String>::new(), "{scheme}");
    }
    for width in [1280, 360] {
        browser.resize(width);
        browser.wait_for(&format!("innerWidth === {width}"));
        let page = "document.documentElement";
        let beyond = browser.run(&format!("return {page}.scrollWidth - {page}.clientWidth"));
        assert_eq!(beyond, 0, "at {width} it scrolls sideways");
    }
}
