//! What is wrong with a form, to be said beside the field.

use axum::http::StatusCode;

use crate::error::ApiError;

pub(super) struct Problem {
    pub status: StatusCode,
    field: &'static str,
    sentence: String,
}

impl Problem {
    /// Only of what somebody can put right in the form; any other error is passed on.
    pub fn of(error: ApiError) -> Result<Problem, ApiError> {
        let field = match (error.status, error.body.field) {
            (_, Some(field)) => field,
            // There is one of that name.
            (StatusCode::CONFLICT, None) => "name",
            _ => return Err(error),
        };
        let sentence = error.body.error.strip_prefix(field).and_then(|rest| rest.strip_prefix(": "));
        let sentence = sentence.unwrap_or(&error.body.error).to_owned();
        Ok(Problem { status: error.status, field, sentence })
    }

    /// What is wrong with this field; nothing if it is another.
    pub fn with(&self, field: &str) -> &str {
        if self.field == field { &self.sentence } else { "" }
    }

    /// What is wrong, unless it is said beside one of these fields.
    pub fn beside(&self, shown: &[&str]) -> &str {
        if shown.contains(&self.field) { "" } else { &self.sentence }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_said_beside_its_field() {
        let problem = Problem::of(ApiError::invalid("cron", "never comes")).ok().unwrap();
        assert_eq!((problem.with("cron"), problem.with("name")), ("never comes", ""));
        assert_eq!((problem.beside(&["cron"]), problem.beside(&["name"])), ("", "never comes"));
        let exists = windlass::Error::Exists { what: "schedule", name: "a".into() };
        assert!(Problem::of(exists.into()).ok().unwrap().with("name").contains('a'));
        assert!(Problem::of(ApiError::unavailable("closed", "later")).is_err());
    }
}
