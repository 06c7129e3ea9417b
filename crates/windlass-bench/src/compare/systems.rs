//! The systems that are compared.

/// Where a system keeps its events.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Place {
    Postgres,
    Sqlite,
    Nats,
    Beanstalkd,
}

/// What its adapter is part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Package {
    /// This program.
    Own,
    Rust,
    /// Alone, since its SQLite cannot be linked beside another.
    Effectum,
    Node,
    Python,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct System {
    pub name: &'static str,
    pub place: Place,
    pub package: Package,
}

impl System {
    pub fn is_ours(&self) -> bool {
        self.package == Package::Own
    }
}

const fn system(name: &'static str, place: Place, package: Package) -> System {
    System { name, place, package }
}

pub const SYSTEMS: &[System] = &[
    system("windlass-postgres", Place::Postgres, Package::Own),
    system("windlass-http", Place::Postgres, Package::Own),
    system("graphile-worker", Place::Postgres, Package::Node),
    system("pg-boss", Place::Postgres, Package::Node),
    system("awa", Place::Postgres, Package::Rust),
    system("graphile-worker-rs", Place::Postgres, Package::Rust),
    system("apalis-postgres", Place::Postgres, Package::Rust),
    system("pgmq", Place::Postgres, Package::Rust),
    system("procrastinate", Place::Postgres, Package::Python),
    system("pgqueuer", Place::Postgres, Package::Python),
    system("windlass-sqlite", Place::Sqlite, Package::Own),
    system("apalis-sqlite", Place::Sqlite, Package::Rust),
    system("effectum", Place::Sqlite, Package::Effectum),
    system("nats", Place::Nats, Package::Rust),
    system("beanstalkd", Place::Beanstalkd, Package::Rust),
];

pub fn find(name: &str) -> Option<&'static System> {
    SYSTEMS.iter().find(|system| system.name == name)
}
