//! `windlass schedule preview`.

use clap::Args;
use serde::Deserialize;
use windlass::Timestamp;

use crate::Result;
use crate::api::given;
use crate::commands::{Common, show};
use crate::when;

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
    #[arg(long, value_name = "WHEN", value_parser = when::instant)]
    from: Option<Timestamp>,
    /// How many
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    count: u32,
    #[command(flatten)]
    common: Common,
}

impl Preview {
    pub async fn run(self) -> Result {
        #[derive(Deserialize)]
        struct Body {
            ticks: Vec<Timestamp>,
        }
        let query = given([
            ("cron", Some(self.cron)),
            ("timezone", self.timezone),
            ("from", self.from.map(when::exact)),
            ("count", Some(self.count.to_string())),
        ]);
        let ask = self.common.target.with(async |api| api.get(&api.within("/schedules/preview"), &query).await);
        let answer = ask.await?;
        show(self.common.json, &answer, |answer| {
            let ticks = answer.read::<Body>()?.ticks;
            let lines: Vec<String> = ticks.into_iter().map(when::shown_with_age).collect();
            Ok(if lines.is_empty() { "It never ticks.".to_owned() } else { lines.join("\n") })
        })
    }
}
