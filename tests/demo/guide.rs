//! The text that shows the user what to do with the demo.

/// The text that is shown when everything is there.
pub fn guide(urls: &[String], hints: &[String], has_keys: bool) -> String {
    let url = &urls[0];
    let mut text = format!(
        "
Open {url}/ in a browser: the demo sends requests through the three, and shows what becomes of them.

    curl -i  {url}/api               100 requests a minute for each client, in a token bucket
    curl -i  {url}/quota             what is left of that, for nothing
    curl -i  {url}/gcra              5 a second and 10 more at once, by GCRA
    curl -i \"{url}/search?cost=25\"   spends 25 of 100 a minute
    curl -i \"{url}/login?user=me\"    3 a minute, with an error page of its own
    curl -i  {url}/metrics           what this nginx decided; in a browser it is a page

The other two, with the same locations and metrics of their own:

    {}

",
        urls[1..].join("\n    ")
    );
    if !hints.is_empty() {
        text += &format!("    {}\n\n", hints.join("\n    "));
    }
    if has_keys {
        text += "k  kill Redis\nf  freeze Redis\ns  start Redis\n\n";
    }
    text
}
