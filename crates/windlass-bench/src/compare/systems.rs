//! The compared systems.

/// Where a system keeps its events.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Storage {
    Postgres,
    Sqlite,
    Nats,
    Beanstalkd,
}

/// The package that contains its adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Package {
    /// This program.
    Own,
    Rust,
    /// Separate, because its SQLite cannot be linked together with another one.
    Effectum,
    Node,
    Python,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct System {
    pub name: &'static str,
    pub storage: Storage,
    pub package: Package,
}

impl System {
    pub fn is_ours(&self) -> bool {
        self.package == Package::Own
    }
}

const fn system(name: &'static str, storage: Storage, package: Package) -> System {
    System { name, storage, package }
}

pub const SYSTEMS: &[System] = &[
    system("windlass-postgres", Storage::Postgres, Package::Own),
    system("windlass-http", Storage::Postgres, Package::Own),
    system("graphile-worker", Storage::Postgres, Package::Node),
    system("pg-boss", Storage::Postgres, Package::Node),
    system("awa", Storage::Postgres, Package::Rust),
    system("graphile-worker-rs", Storage::Postgres, Package::Rust),
    system("apalis-postgres", Storage::Postgres, Package::Rust),
    system("pgmq", Storage::Postgres, Package::Rust),
    system("procrastinate", Storage::Postgres, Package::Python),
    system("pgqueuer", Storage::Postgres, Package::Python),
    system("windlass-sqlite", Storage::Sqlite, Package::Own),
    system("apalis-sqlite", Storage::Sqlite, Package::Rust),
    system("effectum", Storage::Sqlite, Package::Effectum),
    system("nats", Storage::Nats, Package::Rust),
    system("beanstalkd", Storage::Beanstalkd, Package::Rust),
];

pub fn find(name: &str) -> Option<&'static System> {
    SYSTEMS.iter().find(|system| system.name == name)
}
