//! A web server of another site: it serves one page, and records every request.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// A received request.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    /// `POST /api/v1/runs`.
    pub(crate) line: String,
    pub(crate) content_type: Option<String>,
}

#[derive(Clone, Debug)]
pub(crate) struct Site {
    pub(crate) port: u16,
    page: Arc<Mutex<String>>,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl Site {
    pub(crate) fn new() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let site = Self { port, page: Arc::default(), requests: Arc::default() };
        let serving = site.clone();
        // It ends with the test's process.
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let site = serving.clone();
                // A browser that closes the connection is not an error.
                std::thread::spawn(move || drop(site.serve(stream)));
            }
        });
        site
    }

    pub(crate) fn set_page(&self, page: String) {
        *self.page.lock().unwrap() = page;
    }

    pub(crate) fn requests(&self) -> Vec<Request> {
        self.requests.lock().unwrap().clone()
    }

    pub(crate) fn has_got(&self, line: &str) -> bool {
        self.requests().iter().any(|request| request.line == line)
    }

    fn serve(&self, mut stream: TcpStream) -> std::io::Result<()> {
        let mut reader = BufReader::new(stream.try_clone()?);
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let line = line.trim_end().trim_end_matches(" HTTP/1.1").to_owned();
        let (mut length, mut content_type) = (0, None);
        loop {
            let mut header = String::new();
            reader.read_line(&mut header)?;
            let Some((name, value)) = header.trim_end().split_once(": ") else { break };
            match name.to_ascii_lowercase().as_str() {
                "content-length" => length = value.parse().unwrap_or(0),
                "content-type" => content_type = Some(value.to_owned()),
                _ => {}
            }
        }
        std::io::copy(&mut reader.take(length), &mut std::io::sink())?;
        self.requests.lock().unwrap().push(Request { line, content_type });
        let page = self.page.lock().unwrap().clone();
        write!(
            stream,
            "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{page}",
            page.len()
        )
    }
}
