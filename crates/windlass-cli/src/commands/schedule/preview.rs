//! `windlass schedule preview`.

use clap::Args;
use windlass::Timestamp;
use windlass_api::PreviewBody;

use crate::Result;
use crate::api::present_params;
use crate::commands::{NamespaceArgs, print_response};
use crate::time;

/// Show when a rule would tick, without making a schedule of it
#[derive(Args)]
#[command(after_help = "\
Examples:
  windlass schedule preview '0 6 * * MON-FRI' --timezone Europe/Berlin
  windlass schedule preview '*/15 * * * *' --from 2026-03-29 --count 20")]
pub struct Preview {
    /// The expression: minute, hour, day of the month, month and day of the week; with six fields, the second first
    #[arg(value_name = "CRON")]
    cron: String,
    /// The zone of the IANA database that it goes by; UTC if not given
    #[arg(long, value_name = "ZONE")]
    timezone: Option<String>,
    /// From then on: a day or an instant; from now on if not given
    #[arg(long, value_name = "WHEN", value_parser = time::parse_timestamp)]
    from: Option<Timestamp>,
    /// How many
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    count: u32,
    #[command(flatten)]
    common: NamespaceArgs,
}

impl Preview {
    pub async fn run(self) -> Result {
        let query = present_params([
            ("cron", Some(self.cron)),
            ("timezone", self.timezone),
            ("from", self.from.map(time::to_rfc3339)),
            ("count", Some(self.count.to_string())),
        ]);
        let call =
            self.common.target.with_api(async |api| api.get(&api.namespace_path("/schedules/preview"), &query).await);
        let response = call.await?;
        print_response(self.common.json, &response, |response| {
            let ticks = response.json::<PreviewBody>()?.ticks;
            let lines: Vec<String> = ticks.into_iter().map(time::format_with_age).collect();
            Ok(if lines.is_empty() { "It never ticks.".to_owned() } else { lines.join("\n") })
        })
    }
}
