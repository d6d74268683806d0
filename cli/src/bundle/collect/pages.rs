//! All pages of one program.

use std::time::Duration;

use tokio::time::timeout;

use super::Item;
use crate::hosts::NoAnswer;
use crate::pages::Pages;

/// All pages of a program that its index lists.
pub(super) async fn ask_pages(
    deadline: Duration,
    connect: impl Future<Output = Result<Pages, NoAnswer>>,
    folder: &str,
) -> Vec<Item> {
    let index = format!("{folder}/index.txt");
    let listed = timeout(deadline, async {
        let mut pages = connect.await?;
        let (_, index) = pages.get("/").await?;
        Ok::<_, NoAnswer>((pages, index))
    });
    let (mut pages, text) = match listed.await {
        Ok(Ok(listed)) => listed,
        Ok(Err(unanswered)) => return vec![Item::new(index, "its pages", Err(unanswered.text))],
        Err(_) => {
            let late = NoAnswer::late(deadline).text;
            return vec![Item::new(index, "its pages", Err(late))];
        }
    };
    let mut items = Vec::new();
    let mut is_over = false;
    for line in text.lines() {
        let Some((path, about)) = page_of(line) else {
            continue;
        };
        let content = if is_over {
            Err("not asked: the connection was of no use any more".to_owned())
        } else {
            page(deadline, &mut pages, path).await
        };
        is_over |= content.is_err();
        let file = format!("{folder}{path}.txt");
        items.push(Item::new(file, about, content));
    }
    items
}

async fn page(deadline: Duration, pages: &mut Pages, path: &str) -> Result<String, String> {
    match timeout(deadline, pages.get(path)).await {
        Ok(Ok((_, text))) => Ok(text),
        Ok(Err(unanswered)) => Err(unanswered.text),
        Err(_) => Err(NoAnswer::late(deadline).text),
    }
}

/// A page of an index that can be read as it is.
fn page_of(line: &str) -> Option<(&str, &str)> {
    let (path, about) = line.split_once(' ')?;
    // A folder is for browsers, and shows what the other pages have.
    let is_plain = path.starts_with('/')
        && !path.ends_with('/')
        && !path.contains(['{', '.'])
        && path != "/debug/log";
    is_plain.then_some((path, about.trim()))
}

#[cfg(test)]
mod tests {
    use anyhow::Result;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::UnixListener;

    use super::*;

    #[test]
    fn a_page_with_a_parameter_or_without_a_text_is_not_asked_for() {
        assert_eq!(
            page_of("/debug/nodes  the directory"),
            Some(("/debug/nodes", "the directory"))
        );
        for line in [
            "",
            "Pages of culvert-proxy:",
            "/debug/explain/{destination}  why",
            "/debug/log  PUT",
            "/dashboard/  for browsers",
        ] {
            assert_eq!(page_of(line), None, "{line}");
        }
    }

    #[tokio::test]
    async fn each_page_after_one_that_fails_has_a_line() -> Result<()> {
        let folder = tempfile::tempdir()?;
        let socket = folder.path().join("admin.sock");
        let listener = UnixListener::bind(&socket)?;
        let serve = async {
            let (mut connection, _) = listener.accept().await?;
            let mut asked = Vec::new();
            while !asked.ends_with(b"\r\n\r\n") {
                asked.push(connection.read_u8().await?);
            }
            let index = "/debug/a  a\n/debug/b  b\n/debug/c  c\n";
            let length = index.len();
            let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{index}");
            connection.write_all(answer.as_bytes()).await
        };
        let asked = Pages::connect_socket(&socket);
        let deadline = Duration::from_secs(60);
        let (items, served) = tokio::join!(ask_pages(deadline, asked, "x"), serve);
        served?;
        let mut reasons = Vec::new();
        for item in items {
            reasons.push((item.path, item.content.expect_err("no page")));
        }
        let [(a, _), (b, reason), (c, _)] = reasons.as_slice() else {
            panic!("{reasons:?}");
        };
        assert_eq!(
            [a, b, c],
            ["x/debug/a.txt", "x/debug/b.txt", "x/debug/c.txt"]
        );
        assert!(reason.starts_with("not asked"), "{reason}");
        Ok(())
    }
}
