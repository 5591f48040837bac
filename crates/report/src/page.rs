//! Pages of their own: nothing is fetched, nothing is run; light or dark as the reader's system is.

use maud::{html, Markup, PreEscaped, DOCTYPE};

const STYLE: &str = "\
:root{color-scheme:light dark;--ink:#1f2328;--soft:#59636e;--paper:#fff;--line:#d1d9e0;--tint:#f3f5f7;--good:#1a7f37;--bad:#c0191f}
@media(prefers-color-scheme:dark){:root{--ink:#e6e9ed;--soft:#9aa4af;--paper:#12161b;--line:#3a424c;--tint:#1b2129;--good:#4cc266;\
--bad:#ff7b72}}
body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:var(--ink);background:var(--paper)}
h1{font-size:1.6rem;line-height:1.25}h2{font-size:1.2rem;margin-top:2.2rem}h3{font-size:1rem;margin:1.2rem 0 .2rem}
figure{margin:0}svg{display:block;width:100%;max-width:52rem;height:auto}svg text{font-family:system-ui,sans-serif;fill:var(--ink)}
.scroll{overflow-x:auto}table{border-collapse:collapse;font-size:.9rem;font-variant-numeric:tabular-nums;margin:.6rem 0}
th,td{padding:.25rem .7rem;border-bottom:1px solid var(--line);text-align:left;vertical-align:top}
th{background:var(--tint);font-weight:600}.right{text-align:right}td.right{white-space:nowrap}
.good{color:var(--good);font-weight:600}.bad{color:var(--bad);font-weight:600}.soft{color:var(--soft);font-size:.9rem}
.key span{display:inline-block;width:.9em;height:.9em;margin:0 .35em 0 1em;vertical-align:-.1em}
summary{cursor:pointer}code{font-size:.95em}
";

/// A whole page.
pub fn page(title: &str, body: &Markup) -> String {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (title) }
                style { (PreEscaped(STYLE)) }
            }
            body { h1 { (title) } (body) }
        }
    };
    page.into_string()
}

/// Which colour is what.
pub fn key<'a>(colours: impl IntoIterator<Item = (&'a str, &'a str)>) -> Markup {
    html! {
        p.key { @for (colour, name) in colours { span style={ "background:" (colour) } {} (name) } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_needs_nothing_from_elsewhere() {
        let page = page("a < b", &key([("#123456", "one & two")]));
        assert!(page.contains("<title>a &lt; b</title>") && page.contains("one &amp; two"));
        assert!(!page.contains("http") && !page.contains("<script"), "{page}");
    }
}
