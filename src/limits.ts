// Every bound of the hub, its unit in the name and its reason beside it. Nothing here acts; nothing
// anywhere else invents a bound. `LIMIT_<NAME>` in the environment overrides the rates at the top.

/** Rates an operator may override with `LIMIT_<NAME>`; 0 switches a rate off. */
export const rateDefaults = {
  /** Failed logins per 5 minutes for one ip and email: a person mistypes, a guesser is stopped. */
  LOGIN: 5,
  /** Failed logins per 5 minutes for one ip, whatever the email: password spraying. */
  LOGIN_IP: 20,
  /** Refreshes per minute and user: a tab needs one in 15 minutes, ten tabs reload at once. */
  REFRESH: 10,
  /** API requests per minute and user: a script that polls each 100 ms is the fastest honest one. */
  API: 600,
  /** Requests a user may make at once before the rate counts: a dashboard that opens. */
  API_BURST: 120,
  /** Enrollments per minute and ip: a site behind one NAT rolls out ten devices a second. */
  ENROLL: 600,
  /** Enrollments with a wrong secret per minute and ip. */
  ENROLL_FAILURES: 10,
  /** Connects per minute and device: full-jitter back-off makes about two. */
  CONNECT: 6,
  /** Frames per minute and agent, sustained: ten a second of live output beside heartbeats. */
  FRAMES: 600,
  /** Frames an agent may send at once: a hundred queued results after an outage, with their states. */
  FRAMES_BURST: 1200,
  /** New agent sockets per second and hub: what PostgreSQL and the actors take without delaying anyone. */
  ACCEPT: 4000,
}

export type Rates = { -readonly [K in keyof typeof rateDefaults]: number }

export const limits = {
  // ---- HTTP
  /** Body of a request: scripts are 256 KiB, the rest is far smaller. */
  bodyBytesMax: 1024 * 1024,
  /**
   * Request line and headers together: a token, cookies of others and what proxies add. uWebSockets.js
   * answers 431 past it, and also past 98 headers, which is compiled in.
   */
  headerBytesMax: 16 * 1024,
  /** One string of a credential as presented; hashing longer ones would be work for free. */
  credentialBytesMax: 1024,
  /** Writing requests, 40 us each, that are begun or answered in one turn of the event loop: the others wait for the next. */
  turnWritesMax: 32,
  /** A whole request's work, database included; beyond it the caller has given up. */
  requestMsMax: 30_000,
  /** `?wait`: proxies in front commonly cut at 60 s. */
  waitSecondsMax: 60,
  /** How long a cancel waits for the end of what was not sent: a commit, or a look by another hub's sweep. */
  cancelSecondsMax: 5,
  /** Requests held by `?wait` at once: each is an open response of about 2 KB. */
  waitersMax: 20_000,
  /** Page size of lists; 500 device rows are about 300 KB. */
  pageSizeMax: 500,
  pageSizeDefault: 50,
  /** Devices of a status that are sorted by name for a page: about 10 ms; of more a walk by name soon finds some. */
  sortedRowsMax: 5000,
  /** Entries of an index, 0.1 us each, that a page walks before its filters are planned for instead. */
  walkedEntriesMax: 2_000,
  /** Devices, 2 us each, that it looks at. */
  walkedDevicesMax: 500,
  /** A cursor holds two keys and a digest; longer ones are not ours. */
  cursorCharsMax: 1024,
  /** A caller's X-Request-Id is kept when it is no longer than this. */
  requestIdCharsMax: 128,
  /** The path of a member that is refused; of a longer one the body is. */
  errorPathCharsMax: 256,
  /** Idempotency-Key as a header: a UUID or a ULID, with room. */
  idempotencyKeyCharsMax: 255,

  /** One chunk of a streamed answer; about two of them wait in the socket of a slow reader. */
  streamChunkBytesMax: 256 * 1024,
  /** A caller who reads nothing of a streamed answer for so long has stalled and is closed. */
  streamStallMs: 60_000,

  // ---- sign-in
  accessTokenSeconds: 900,
  refreshTokenDays: 7,
  /** A family of refresh tokens ends here whatever is done: a stolen laptop is not signed in for ever. */
  refreshFamilyDays: 30,
  /** Two tabs refresh at once; the slower one gets the same successor within this time. */
  refreshLeewaySeconds: 30,
  passwordCharsMin: 12,
  passwordCharsMax: 256,
  /** Argon2id as OWASP advises it for servers: 19 MiB, two passes, one lane; about 25 ms here. */
  argon2MemoryKiB: 19_456,
  argon2Passes: 2,
  argon2Lanes: 1,
  /** Threads that hash, less where cores are few: each takes 19 MiB while it works. */
  hashThreadsMax: 4,
  /** Hashing yields to heartbeats: a storm of logins may wait, agents may not. */
  hashNice: 10,
  /** Hashes waiting for a thread; at about 50 ms each, 64 on one thread are 3 s, then 503. */
  hashQueueMax: 64,
  /** Verified access tokens kept: about 300 bytes each. */
  tokenCacheMax: 50_000,
  /** Signed-in identities kept: about 1 KB each. */
  identityCacheMax: 50_000,
  /** A cached identity is trusted while the LISTEN connection answered within this time. */
  identityTrustMs: 2_000,
  /** The LISTEN connection is asked this often: two answers may be lost before trust ends. */
  listenPingMs: 700,
  /** Longest pause before the LISTEN connection is tried again. */
  listenRetryMsMax: 2_000,
  /** Callers counted per rate; about 150 bytes each. The longest silent is forgotten first. */
  rateKeysMax: 100_000,
  /** Hubs tell each other this often what was taken: for so long a caller may take twice from two hubs. */
  rateExchangeMs: 100,
  /** Callers of one exchange: about 1 ms of Redis and as much of the front. */
  rateExchangeKeysMax: 200,
  /** Callers waiting to be told of while Redis is away, about 200 bytes each; the first is forgotten first. */
  rateTouchedKeysMax: 50_000,
  emailCharsMax: 254,
  /** An invitation to set a first password. */
  inviteHours: 72,
  /** Sites a user may be narrowed to: they travel with each query of the user, 36 bytes each. */
  userSitesMax: 500,

  // ---- mail and pages
  /** Mails sent or waiting to be tried again; about 3 KB each. Past it a mail is given up, the link stays. */
  mailsOpenMax: 1_000,
  /** Reaching a mail server; a near one takes milliseconds. */
  mailConnectMsMax: 10_000,
  /** Silence of a mail server in the middle of a mail: some look into it before they answer. */
  mailSilenceMsMax: 30_000,
  /** Pauses before a mail is tried again; the last one outlasts the usual greylisting of five minutes. */
  mailRetrySeconds: [5, 30, 120, 600],
  /** A file served to browsers and kept in memory; the largest, Swagger UI's script, has 1.5 MB. */
  assetBytesMax: 4 * 1024 * 1024,

  // ---- audit
  /** Audit rows of refusals waiting to be written; each is about 500 bytes. */
  auditQueueMax: 10_000,
  /** Rows of one audit statement, about 5 ms. */
  auditBatchMax: 256,
  /** What a caller chose (an email, an id in a path) is cut to this in an audit row. */
  auditTextCharsMax: 255,
  userAgentCharsMax: 512,
  /** Rows of one batch of an export: about 200 KB, some 5 ms of PostgreSQL. */
  exportBatchMax: 500,
  /** Exports at once in this hub: each keeps PostgreSQL about half a core busy. */
  exportsMax: 3,
  exportsPerUserMax: 1,
  /** Verifications at once in this hub: each keeps PostgreSQL one core busy. */
  verificationsMax: 1,
  verificationsPerUserMax: 1,
  /** Links of a chain verified by one statement: with full ones about half a second. */
  verifySealsMax: 50,
  /** Rows counted by one statement of a verification, about 50 ms. */
  verifyRowsMax: 50_000,
  /** Rows under one seal: what verifying reads to judge one link. */
  sealRowsMax: 2_000,
  /** Until a new row is sealed; a shorter time makes more links of few rows. */
  sealMs: 10_000,
  /** `at` and the time in an id come from two clocks when a row is written by a statement of a shard. */
  auditClockSkewMs: 3_600_000,

  // ---- organizations and sites
  nameCharsMax: 255,
  /** As a DNS label, so that a slug can become a host name. */
  slugCharsMax: 63,
  addressCharsMax: 500,
  offlineGraceSecondsMax: 3600,
  offlineGraceSecondsDefault: 60,
  retentionDaysMax: 3650,
  enrollmentKeySecondsMax: 365 * 86_400,
  enrollmentKeyUsesMax: 1_000_000,

  // ---- agents
  /** Heartbeat interval told to agents. */
  heartbeatSeconds: 30,
  /** A socket whose writes are refused is closed as superseded, unless a better reason comes first. */
  supersededMs: 250,
  /** Offline after this many intervals without a heartbeat: one lost beat is no outage. */
  heartbeatIntervalsMax: 2.5,
  /** A text frame; a result with stdout and stderr of 1 MiB each fits with room. */
  frameBytesMax: 4 * 1024 * 1024,
  inventoryBytesMax: 256 * 1024,
  /** Nesting of what an agent reports; PostgreSQL and the JSON writer recurse over it. */
  jsonDepthMax: 64,
  /** Bytes waiting in one agent's socket before it is closed as a slow reader: two of the largest frames. */
  backpressureBytesMax: 8 * 1024 * 1024,
  /** Agents whose frames are remembered past their socket: about 100 bytes each; the earliest are forgotten. */
  spentAllowancesMax: 10_000,
  /** Upgrades waiting for their token check; past it 503. About 1 KB each. */
  connectQueueMax: 20_000,
  /** Token checks in one statement, about 3 ms of PostgreSQL: it checks the next ones while these are upgraded. */
  connectBatchMax: 256,
  /** An agent that connects with an older token is given a new one; the old one serves until that was used. */
  agentTokenDays: 30,
  /** Between two starts of a connect statement that is not full: nobody notices 20 ms, and they stay few. */
  connectGapMs: 20,
  /** The same for claims, two statements each and in every shard: 80/s with two of them. */
  claimGapMs: 50,
  /** After statements that PostgreSQL did not answer: those that were given up have run by then. */
  doubtMs: 20_000,
  /** Until PostgreSQL is asked whether a command that was loaded is still open; each time twice as long. */
  lookGapMs: 1_000,
  /** A refused agent is told to come back after up to this. */
  acceptRetrySecondsMax: 30,
  /** An agent of a suspended organization asks again after this, and up to this part of it later. */
  suspendedRetrySeconds: 600,
  suspendedRetryJitter: 0.2,
  /** A heartbeat waits so long for others: nobody notices, and a shard wakes 50 times a second instead of for each. */
  heartbeatGapMs: 20,
  /** Batches handed to a shard and not yet confirmed; what comes then waits, and makes the next ones larger. */
  shardBatchesMax: 64,
  /** While a shard has so many, it is looked after how far it is so often: a fraction of what a stall takes. */
  shardLookMs: 5,
  /** Bytes of frames that a shard has not confirmed, handed over or waiting; past it who sends is closed. */
  shardBytesMax: 64 * 1024 * 1024,
  /** From so many on heartbeats are dropped: half an hour of 1,000 agents, or a flood. */
  shardBusyBytes: 16 * 1024 * 1024,
  /** What a frame takes beside its text. */
  shardFrameBytes: 64,
  /** A shard that has not confirmed for so long is behind, and the hub not ready; a pause for garbage is shorter. */
  shardBehindMsMax: 2_000,
  /** Frames of one turn handed over in one message: keeps a message under about 1 ms of work. */
  shardBatchFramesMax: 1024,
  /** An agent's own alert. */
  alertTitleCharsMax: 255,
  alertMessageCharsMax: 4096,
  dedupeKeyCharsMax: 255,
  /** Metrics an agent may report beside the named ones; stored as one small jsonb. */
  metricsMax: 32,
  metricNameCharsMax: 64,
  /** lastSeenAt and metrics are flushed at most this often per device, jittered. */
  presenceFlushMs: 60_000,
  /** An enrollment is repeated with its Idempotency-Key within this time. */
  enrollRepeatSeconds: 600,

  /** Tags of a device: labels, not a database. */
  tagsMax: 50,
  tagCharsMax: 64,

  // ---- commands
  /** Open commands per device: more is a script in a loop. */
  openCommandsMax: 100,
  commandTimeoutSecondsDefault: 300,
  commandTimeoutSecondsMax: 86_400,
  /** A command waits for its device this long unless told otherwise. */
  expiresSecondsDefault: 86_400,
  expiresSecondsMax: 30 * 86_400,
  /** An open command's id is never older than its longest wait, its longest run and a margin. */
  openCommandDaysMax: 33,
  /** The agent kills at its deadline; the hub waits this much longer for the word of it. */
  timeoutGraceSeconds: 30,
  /** A script's content, or a command line's. */
  payloadBytesMax: 256 * 1024,
  /** A payload as JSON: the content above, every character of it escaped as `\\n`, and its environment. */
  payloadJsonBytesMax: 768 * 1024,
  /** stdout and stderr, JSON-encoded bytes each. */
  outputBytesMax: 1024 * 1024,
  errorBytesMax: 256 * 1024,
  /** Rows of one command insert; 256 commands are 768 rows, about 6 ms. */
  commandBatchMax: 256,
  /** Payload bytes of one command insert: bounds the statement, not the caller. */
  commandBatchBytesMax: 4 * 1024 * 1024,
  /** Insert statements in flight: one, so that what arrives during a commit is one larger batch. */
  commandBatchesInFlight: 1,
  /** Commands waiting for their insert; past it 503 OVERLOADED. */
  commandQueueMax: 10_000,
  idempotencyHours: 24,
  /** States before the end are written this late, so that a quick command is one write, not three. */
  progressDelayMs: 25,
  /** The answer to a cancel waits so long for them, to show what is asked of whom: some commits more than the delay. */
  cancelSettleMsMax: 200,

  // ---- releases
  /** How often the folder of releases is looked at. */
  releaseLookMs: 2_000,
  /** Versions that are looked at, the highest; each has six platforms and about 900 MB. */
  releasesMax: 32,
  /** Files of a version: six platforms, each also compressed, the manifest, and room for notes. */
  releaseFolderFilesMax: 64,
  releaseKeysMax: 16,
  /** A public key in PEM has 113 bytes. */
  releaseKeyBytesMax: 4 * 1024,
  /** One read of a file that is checked. */
  releaseReadBytesMax: 1024 * 1024,
  /** One read of a download. A reader who takes nothing for `streamStallMs` is closed. */
  downloadPieceBytes: 64 * 1024,
  /** Reads of downloads at once: the thread pool has four, the others wait for their turn without memory. */
  downloadBuffers: 16,
  /** What all downloads of a hub send at most, a line of one gigabit: 2,000 pieces a second, a fifth of the front. */
  downloadBytesPerSecond: 125_000_000,
  /** What the pace of downloads makes good when the front was late, at most. */
  downloadCreditMs: 10,
  /** Downloads at once: each holds a socket and about 10 KB. */
  downloadsMax: 2_000,
  /** Of one address: a site behind one NAT, and still nobody takes all alone. */
  downloadsPerAddressMax: 1_000,

  // ---- scripts
  /** Parameters of a script, and what all values of one execution may hold as an environment: what
   * Windows allows a process, less its own. */
  scriptParametersMax: 50,
  parameterNameCharsMax: 64,
  parametersBytesMax: 24 * 1024,
  scriptTimeoutSecondsMax: 3600,
  descriptionCharsMax: 4096,
  /** Devices that one execution may name; more are meant by a filter. */
  executionDevicesMax: 10_000,
  /** Devices of one statement of the fan-out: 500 are 1,500 rows, about 25 ms. */
  executionBatchMax: 500,
  /** Fan-outs at once per hub: a large one must not keep a small one waiting. */
  executionsAtOnce: 2,
  /** An unfinished fan-out that did not move for this long is sent again: its thread has died. */
  executionStallSeconds: 10,
  /** How often ends are looked at for executions that are complete by them. */
  executionSweepMs: 500,
  // ---- roll-outs
  /** An agent has so long to download, try and confirm a version. */
  upgradeTimeoutSeconds: 900,
  rolloutGroupsMax: 20,
  /** Devices of one roll-out: they get their places in one statement, about 2 s for so many. */
  rolloutDevicesMax: 100_000,
  /** Roll-outs at work at once per hub; each has a step of milliseconds now and then. */
  rolloutsAtOnce: 1,
  /** How often ends of upgrades are read, and roll-outs looked for that are due. */
  rolloutSweepMs: 1_000,
  /** Ends of upgrades noted by one statement. */
  rolloutEndsMax: 1_000,
  /** Devices without a command that one statement of an abort frees. */
  rolloutCancelMax: 5_000,
  /** An actor has so long to give a command back before it is asked again. */
  rolloutWithdrawSeconds: 10,
  /** Versions and conflicting roll-outs that an answer names one by one. */
  rolloutVersionsMax: 100,

  /** Sites that a dry run counts one by one, the largest first. */
  dryRunSitesMax: 500,
  /** Contents or results in one page of a list; the page ends early past it. */
  pageBytesMax: 8 * 1024 * 1024,
  /** Results read at once for a page: ten of the largest are about 25 MB. */
  resultRowsMin: 10,
  /** Scripts kept ready in a shard, by their bytes: sixty of the largest. */
  scriptCacheBytesMax: 16 * 1024 * 1024,
  /** Scripts read in one statement by a shard. */
  scriptLoadMax: 32,
  /** Bytes of script frames a shard hands over in a slice of time; at 100 ms about 80 MiB/s. */
  scriptSliceBytesMax: 8 * 1024 * 1024,
  scriptSliceMs: 100,

  // ---- store (each shard)
  /** Rows of one write-behind statement. */
  storeBatchMax: 512,
  /** Bytes of one write-behind statement. */
  storeBatchBytesMax: 8 * 1024 * 1024,
  /** Results waiting for PostgreSQL in one shard; past it the shard stops confirming frames. */
  storeBytesMax: 128 * 1024 * 1024,
  /** Frames of one agent while its claim is under way, and their bytes: two of the largest. */
  heldFramesMax: 256,
  heldBytesMax: 8 * 1024 * 1024,
  /** Results of ids that are not open, waiting in one shard; past it agents send them again. */
  strayBytesMax: 32 * 1024 * 1024,
  /** Claims, and ends of them, waiting in one shard: all of its devices at once after a lost lease or network; 200 bytes each. */
  presenceRowsMax: 500_000,
  /** Rows of any other kind waiting in one shard. */
  storeRowsMax: 50_000,
  /** Between tries while PostgreSQL is away. */
  storeRetryMs: 500,

  // ---- alerts
  /** An agent's own alerts that may be open at once: more is a loop in a check. */
  agentAlertsMax: 20,
  /** A threshold's alert resolves this many points below it, or a tenth of it where that is less. */
  thresholdMarginPercent: 5,
  /** Devices of a site that go together are one alert: from this many on … */
  foldDevicesMin: 5,
  /** … when they are this part of the site … */
  foldShareMin: 0.8,
  /** … and went within this time. */
  foldSeconds: 60,
  /** A device whose sockets replaced each other this often within the time below has a twin. */
  flipFlopsMax: 4,
  flipFlopMs: 5 * 60_000,
  /** Devices watched for it, about 150 bytes each; the longest silent is forgotten first. */
  flipFlopDevicesMax: 10_000,
  /** Alerts of one statement; each locks its device's row. */
  alertBatchMax: 256,
  /** Alert writes of a shard go out this late: what repeats meanwhile is one row. */
  alertGapMs: 100,
  /** Absences are judged, and ends of commands read, this often. */
  alertSweepMs: 1_000,
  /** Refused logins are written together this often, whatever the flood. */
  abuseGapMs: 1_000,
  /** Different emails of refused logins kept until then; further ones only count. */
  abuseEmailsMax: 1_000,
  alertNoteCharsMax: 2_000,
  /** A resolved alert is kept this long where its organization says nothing else. */
  resolvedAlertDays: 365,
  // ---- terminals
  /** From the commit of a claim to the welcome on the socket: a turn or two of two threads. */
  terminalArrivalMs: 1_000,
  /** Another hub's answer about a terminal: Redis twice, and there a transaction. */
  relayAnswerMs: 3_000,
  /** To open one: that hub may first ask others, as long, whether they still have what is in the way. */
  relayOpenMs: 7_000,
  /** How often hubs that share a session tell each other so; three in a row missed, and it is broken. */
  relayBeatMs: 2_000,
  relayLostMs: 7_000,
  /** Sessions of a device: three windows of an operator, or three operators. */
  terminalsPerDeviceMax: 3,
  /** Sessions of a hub: up to a window of 256 KiB waits in the operator's socket, 1 MiB and a window in its recording. */
  terminalsMax: 500,
  /** Without operator or agent a session ends after this: a laptop that moves to another network is back. */
  terminalAbsenceSeconds: 120,
  /** Between two askings of an agent whose output has a gap to begin again. */
  terminalAskMs: 1_000,
  /** A ticket is used at once by the page that asked for it. */
  ticketSeconds: 30,
  /** Tickets of one session that may wait; the oldest is forgotten first. */
  ticketsMax: 5,
  /** Frames of a session from either end: pasting and output come in large ones, 30 keys a second are 60. */
  terminalFramesPerMinute: 60_000,
  terminalFramesBurst: 4_000,
  /** Bytes in one operator's socket before it is closed: two windows, one of them sent again. */
  terminalUnsentBytesMax: 1024 * 1024,
  /** A silent operator's socket is asked and closed after this; proxies cut what is silent for as long. */
  terminalIdleSeconds: 60,
  /** Whether operators may still be here is asked this often, beside the news of changes. */
  terminalReviewMs: 15_000,
  /** Frames of others' sessions: one audit row per sender in this time, for so many senders. */
  foreignFrameMs: 60_000,
  foreignFrameSendersMax: 1_000,
  /** Lines of a recording are written together this often. */
  recordingFlushMs: 500,
  /** So much of one session is written at once: a flood reaches it many times before the next flush. */
  recordingFlushChars: 256 * 1024,
  /** Waiting to be written per session while PostgreSQL can't keep up; beyond it the device waits. */
  recordingWaitingCharsMax: 1024 * 1024,
  /** One piece of a recording: a row that is still read and sent in one go. */
  recordingChunkCharsMax: 1024 * 1024,
  /** Recordings of one statement: no more are added once it holds this. */
  recordingWriteChars: 4 * 1024 * 1024,
  /** A recording ends here, with a mark: hours of work, or minutes of a flood. */
  recordingBytesMax: 64 * 1024 * 1024,
  /** Pieces of a recording read at once, up to 1 MiB each. */
  recordingChunksRead: 4,
  /** Between tries to write the end of a session while PostgreSQL is away. */
  terminalEndRetryMs: 1_000,

  // ---- events
  /** Streams of one user: some tabs, a dashboard on the wall and a script. */
  streamsPerUserMax: 20,
  /** Streams of one hub; each event is weighed against each of them, 1,000 take about 1 ms a batch. */
  streamsMax: 1_000,
  /** Written to a stream and not taken by its reader; past it the stream is closed, it can resume. */
  streamUnsentBytesMax: 1024 * 1024,
  /** Proxies cut what is silent for 30 to 60 s. */
  streamHeartbeatMs: 15_000,
  /** Told to readers as `retry:`; at a drain they are spread over up to twice this. */
  streamRetryMs: 2_000,
  /** Between two looks at the outbox while somebody listens: cheaper than a NOTIFY in every commit. */
  outboxPollMs: 250,
  /** Between two tries while PostgreSQL is away. */
  outboxRetryMs: 1_000,
  /** Rows of the outbox read at once, whoever they concern: about 5 ms. */
  outboxBatchMax: 500,

  // ---- webhooks
  /** Webhooks of an organization: every event is matched against all of them. */
  webhooksMax: 50,
  urlCharsMax: 2048,
  /** The old secret signs beside the new one this long: receivers are changed within a working day. */
  webhookOverlapSeconds: 86_400,
  /** A message with more than this comes with `data: {truncated: true}`. */
  webhookBodyBytesMax: 64 * 1024,
  /** What of an answer is read, and kept in the log of deliveries. */
  webhookAnswerBytesMax: 4 * 1024,
  /** Each of: name resolution, TCP and TLS. */
  webhookConnectMsMax: 5_000,
  /** An attempt, once the name is resolved; receivers are asked to answer first and work afterwards. */
  webhookAttemptMsMax: 15_000,
  /** An attempt whose end nobody wrote by now died with its thread. */
  webhookLeaseSeconds: 25,
  /** Attempts of one delivery: 5 s after the first, four times later after each, about a day in all. */
  webhookAttemptsMax: 10,
  webhookRetrySeconds: 5,
  webhookRetrySecondsMax: 8 * 3600,
  /** Attempts at once to one webhook; to one whose last attempt failed it is one. */
  webhookConcurrencyMax: 8,
  /** Attempts at once on one hub, and how many of these may go to webhooks that fail. */
  webhookAttemptsAtOnceMax: 256,
  webhookFailingAtOnceMax: 128,
  /** Webhooks with something to deliver that one claim looks at. */
  webhookClaimMax: 200,
  /** Disabled after this long without a success, if there were attempts enough to tell. */
  webhookFailingDaysMax: 3,
  webhookFailuresMin: 10,
  /** Deliveries that wait for one webhook; past it the webhook is disabled. */
  webhookBacklogMax: 100_000,
  /** How often backlogs are measured; with no webhook at all, how often the cursor moves. */
  webhookSurveyMs: 10_000,
  /** How long the log of deliveries is kept. */
  webhookDeliveryDays: 30,

  // ---- Redis
  /** Reaching Redis, TLS included; a near one takes milliseconds. */
  redisConnectMsMax: 2_000,
  /** An answer; a near Redis takes under a millisecond, so one that needs longer counts as down. */
  redisAnswerMsMax: 1_000,
  /** With nothing to say Redis is asked this often whether it is there: readiness tells. */
  redisProbeMs: 1_000,
  /** Longest pause before Redis is tried again, jittered so that hubs do not return together. */
  redisRetryMsMax: 2_000,
  /** On the way to other hubs; terminals alone send much, and each may have 256 KiB unread. */
  busBytesMax: 8 * 1024 * 1024,
  /** Hubs whose last message is remembered; each start of a hub is a new one. */
  busSendersMax: 1_000,

  // ---- hub
  /** How long PostgreSQL may be unreachable at start. */
  startRetrySeconds: 30,
  /** A node that did not renew its lease for this long is taken for dead. */
  nodeLeaseSeconds: 15,
  /** Readiness turns 503 for so long before a hub in production takes no more connections: two health checks. */
  drainSecondsDefault: 5,
  drainSecondsMax: 300,
  /** Agents of a draining hub that move in a second: each is a TLS handshake in front, and a claim. */
  drainAgentsPerSecond: 400,
  /** Slots are spread over at most this, and agents get this long after the last slot. */
  drainSpreadMsMax: 30_000,
  drainLateMs: 5_000,
  /** Frames written in a turn to a whole fleet: about 5 ms. */
  fleetFramesMax: 500,
  nodeRenewSeconds: 5,
  /** Due commands are ended, and lost sockets found, this often. */
  sweepMs: 2_000,
  sweepBatchMax: 1_000,
  /** Handed over by other hubs and taken at once: 48 MiB of the largest payloads. */
  handoffBatchMax: 64,
  /** How often a hub looks while Redis, which should tell it, is away: two small statements each time. */
  handoffSweepDownMs: 500,
  /** What waiting requests look for by themselves in one statement, beside what hubs tell each other. */
  waitersReadMax: 1_000,
  /** A shard that does not answer for this long is replaced. */
  shardAnswerMsMax: 10_000,
  /** Statements that a connection keeps, some 50 KB of PostgreSQL's memory each; a hub has about 400 texts in all. */
  statementNamesMax: 1_000,
  /** The same where searches are planned for their filters, of which there are thousands. */
  searchNamesMax: 500,
  /** Connections per pool, 42 with two shards: PostgreSQL's default of 100 serves two hubs. */
  poolOperators: 8,
  poolCommands: 4,
  poolShard: 3,
  poolJobs: 4,
  /** One per fan-out and roll-out at work. */
  poolFanOut: 3,
  poolConnect: 2,
  poolEvents: 2,
  poolWebhooks: 2,
  /** Young generation of the jobs thread, in MB. */
  jobsYoungMb: 8,
  /** Searches of the audit, beside the exports and the verification that may run. */
  poolAudit: 6,
  /** Waiting for a pooled connection. */
  checkoutMsMax: 5_000,
  statementMsMax: 15_000,
  /** How much later the hub itself gives a statement up: PostgreSQL's refusal, which is certain, comes first. */
  statementGraceMs: 5_000,
  /** After its start a hub gives back what starting left behind: when its jobs have begun, before agents are many. */
  startedMs: 2_000,
  /** How often connections are looked at for it. */
  statementWatchMs: 1_000,
  /** What a connection to PostgreSQL reads at once, into memory that it keeps: a page of 50 devices is half of it. */
  databaseReadBytes: 64 * 1024,
  /** A connection that is used once in so long stays: who reads a page a minute finds its plan kept, which costs 6 ms to make. */
  poolIdleMs: 120_000,
  /** A connection to PostgreSQL that is silent for so long is asked whether the other side is there. */
  keepAliveMs: 10_000,
  /** Partitions are made this many months ahead. */
  partitionMonthsAhead: 3,
} as const
