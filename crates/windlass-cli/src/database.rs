//! The `--database` option, and how a database is shown to people.

use clap::Args;
use windlass::Queue;

/// Where the options are shown that say where the events are.
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
    /// Looking must not make a database, in the wrong folder for instance, nor change one.
    pub async fn open_existing(&self) -> windlass::Result<Queue> {
        Queue::options(&self.url).migrate(false).open().await
    }

    /// The URL without its password, which may stand before the host or among the parameters.
    pub fn shown(&self) -> String {
        let Some((scheme, rest)) = self.url.split_once("://").filter(|(scheme, _)| *scheme != "sqlite") else {
            return self.url.clone();
        };
        // The last '@': one in the password may have been left unencoded.
        let (user, place) = match rest.rsplit_once('@') {
            Some((user, place)) => match user.split_once(':') {
                Some((name, _)) => (format!("{name}:…@"), place),
                None => (format!("{user}@"), place),
            },
            None => (String::new(), rest),
        };
        let hide = |part: &str| match part.split_once("password=") {
            Some((before, _)) => format!("{before}password=…"),
            None => part.to_owned(),
        };
        let place: Vec<String> = place.split('&').map(hide).collect();
        format!("{scheme}://{user}{}", place.join("&"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_database_is_shown_without_its_password() {
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
        for (url, shown) in cases {
            assert_eq!(Database { url: url.to_owned() }.shown(), shown);
        }
    }
}
