//! Sends e-mails by SMTP.

use std::sync::Arc;

use downbeat_core::Span;
use downbeat_core::ids::DeliveryId;
use lettre::message::{Mailbox, header};
use lettre::{AsyncSmtpTransport, AsyncTransport as _, Message, Tokio1Executor};

use crate::settings::Settings;

/// Sends e-mails with the server's settings; cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Mailer(Arc<Account>);

#[derive(Debug)]
struct Account {
    url: Option<String>,
    from: Option<String>,
}

/// Why an e-mail was not accepted.
#[derive(Debug)]
pub(super) struct NotSent {
    pub(super) text: String,
    pub(super) is_permanent: bool,
}

impl NotSent {
    fn permanent(text: impl Into<String>) -> Self {
        Self { text: text.into(), is_permanent: true }
    }
}

impl Mailer {
    pub(crate) fn new(settings: &Settings) -> Self {
        Self(Arc::new(Account { url: settings.smtp_url.clone(), from: settings.smtp_from.clone() }))
    }

    pub(super) async fn send(
        &self,
        id: DeliveryId,
        to: &[String],
        subject: &str,
        text: &str,
        timeout: Span,
    ) -> Result<(), NotSent> {
        let (Some(url), Some(from)) = (&self.0.url, &self.0.from) else {
            return Err(NotSent::permanent("this server sends no e-mail; set smtp_url and smtp_from"));
        };
        let message = message(id, from, to, subject, text)?;
        // The text of the error would contain the password of the URL.
        let transport = AsyncSmtpTransport::<Tokio1Executor>::from_url(url)
            .map_err(|_| NotSent::permanent("the setting smtp_url is not a URL; write smtp://HOST:PORT"))?
            .timeout(Some(timeout.0))
            .build();
        let late =
            NotSent { text: format!("the mail server did not answer within {timeout}"), is_permanent: false };
        match tokio::time::timeout(timeout.0, transport.send(message)).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(NotSent {
                is_permanent: error.is_permanent(),
                text: format!("the mail server did not accept the e-mail: {error}"),
            }),
            Err(_) => Err(late),
        }
    }
}

fn message(id: DeliveryId, from: &str, to: &[String], subject: &str, text: &str) -> Result<Message, NotSent> {
    let address = |address: &str| -> Result<Mailbox, NotSent> {
        address.parse().map_err(|_| NotSent::permanent(format!("`{address}` is not an address")))
    };
    // The same for each try, so that mail programs show one of them.
    let mut builder = Message::builder()
        .message_id(Some(format!("<{id}@downbeat>")))
        .from(address(from)?)
        .subject(subject)
        .header(header::ContentType::TEXT_PLAIN);
    for one in to {
        builder = builder.to(address(one)?);
    }
    builder.body(text.to_owned()).map_err(|error| NotSent::permanent(error.to_string()))
}
