//! The `--database` option, and the form of its URL that may be printed.

use clap::Args;
use windlass::Queue;

/// Help heading of the options that select a database or a server.
pub const CONNECTION: &str = "Connection";

/// Which database to use.
#[derive(Args, Clone)]
pub struct Database {
    /// The database: sqlite://FILE or postgres://USER:PASSWORD@HOST/DATABASE
    #[arg(
        long = "database",
        value_name = "URL",
        env = "WINDLASS_DATABASE",
        hide_env_values = true,
        default_value = "sqlite://windlass.db",
        help_heading = CONNECTION
    )]
    pub url: String,
}

impl Database {
    /// Opens the database without creating or migrating it: a command run in the wrong folder must change nothing.
    pub async fn open_existing(&self) -> windlass::Result<Queue> {
        Queue::options(&self.url).migrate(false).open().await
    }

    /// Returns the URL without its password, which may be in front of the host or in the parameters.
    pub fn display_url(&self) -> String {
        let Some((scheme, rest)) = self.url.split_once("://").filter(|(scheme, _)| *scheme != "sqlite") else {
            return self.url.clone();
        };
        // Split at the last '@': the password may contain an unencoded one.
        let (user, location) = match rest.rsplit_once('@') {
            Some((user, location)) => match user.split_once(':') {
                Some((name, _)) => (format!("{name}:…@"), location),
                None => (format!("{user}@"), location),
            },
            None => (String::new(), rest),
        };
        let mask_password = |part: &str| match part.split_once("password=") {
            Some((before, _)) => format!("{before}password=…"),
            None => part.to_owned(),
        };
        let location: Vec<String> = location.split('&').map(mask_password).collect();
        format!("{scheme}://{user}{}", location.join("&"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn displayed_url_has_no_password() {
        let cases = [
            ("sqlite://a/b@c:d.db", "sqlite://a/b@c:d.db"),
            ("postgres://localhost/events", "postgres://localhost/events"),
            ("postgres://me@localhost/events", "postgres://me@localhost/events"),
            ("postgres://me:secret@localhost:5432/events", "postgres://me:…@localhost:5432/events"),
            ("postgresql://me:s@cr:et@host/db?sslmode=require", "postgresql://me:…@host/db?sslmode=require"),
            ("postgres://me:s?c@host/db", "postgres://me:…@host/db"),
            ("postgres://host/db?user=me&password=secret", "postgres://host/db?user=me&password=…"),
            ("postgres://host/db?password=secret&user=me", "postgres://host/db?password=…&user=me"),
        ];
        for (url, displayed) in cases {
            assert_eq!(Database { url: url.to_owned() }.display_url(), displayed);
        }
    }
}
