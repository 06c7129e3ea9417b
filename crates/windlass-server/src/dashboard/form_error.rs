//! Errors of a form, shown next to the field.

use std::borrow::Cow;

use axum::http::StatusCode;

use crate::error::ApiError;

pub(super) struct FormError {
    pub status: StatusCode,
    field: Cow<'static, str>,
    message: String,
}

impl FormError {
    /// Converts errors that the user can fix in the form. Other errors are returned.
    pub fn from_api_error(error: ApiError) -> Result<FormError, ApiError> {
        let field = match (error.status, &error.body.field) {
            (_, Some(field)) => field.clone(),
            // The name exists already.
            (StatusCode::CONFLICT, None) => "name".into(),
            _ => return Err(error),
        };
        let message = error.body.error.strip_prefix(&*field).and_then(|rest| rest.strip_prefix(": "));
        let message = message.unwrap_or(&error.body.error).to_owned();
        Ok(FormError { status: error.status, field, message })
    }

    /// The message, if it is about this field.
    pub fn message_for(&self, field: &str) -> &str {
        if self.field == field { &self.message } else { "" }
    }

    /// The message, unless it is about one of these fields, which show it themselves.
    pub fn message_unless_in(&self, shown: &[&str]) -> &str {
        if shown.contains(&&*self.field) { "" } else { &self.message }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_is_shown_next_to_its_field() {
        let problem = FormError::from_api_error(ApiError::invalid("cron", "never comes")).ok().unwrap();
        assert_eq!((problem.message_for("cron"), problem.message_for("name")), ("never comes", ""));
        assert_eq!((problem.message_unless_in(&["cron"]), problem.message_unless_in(&["name"])), ("", "never comes"));
        let exists = windlass::Error::Exists { what: "schedule", name: "a".into() };
        assert!(FormError::from_api_error(exists.into()).ok().unwrap().message_for("name").contains('a'));
        assert!(FormError::from_api_error(ApiError::unavailable("closed", "later")).is_err());
    }
}
