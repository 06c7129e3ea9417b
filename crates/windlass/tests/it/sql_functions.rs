//! What PostgreSQL offers to those who only speak SQL.
