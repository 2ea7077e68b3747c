//! A real browser: pages of other sites cannot do anything to a server, and the server's own page works.

mod chromium;
mod evil;
mod pages;
