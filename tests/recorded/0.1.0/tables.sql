BEGIN TRANSACTION;
CREATE TABLE batch_files (
	id VARCHAR NOT NULL, 
	owner VARCHAR NOT NULL, 
	application VARCHAR NOT NULL, 
	purpose VARCHAR NOT NULL, 
	filename VARCHAR NOT NULL, 
	bytes BIGINT NOT NULL, 
	created_at BIGINT NOT NULL, 
	expires_at BIGINT, 
	stored BOOLEAN NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "batch_files" VALUES('file-1','alice','tideserve','batch','in.jsonl',10,1800000000,NULL,1);
CREATE TABLE batch_lines (
	batch_id VARCHAR NOT NULL, 
	line INTEGER NOT NULL, 
	custom_id VARCHAR NOT NULL, 
	"offset" BIGINT NOT NULL, 
	length INTEGER NOT NULL, 
	position INTEGER NOT NULL, 
	attempts INTEGER NOT NULL, 
	lease_until DOUBLE NOT NULL, 
	outcome VARCHAR, 
	part VARCHAR, 
	PRIMARY KEY (batch_id, line)
);
CREATE TABLE batches (
	id VARCHAR NOT NULL, 
	owner VARCHAR NOT NULL, 
	application VARCHAR NOT NULL, 
	endpoint VARCHAR NOT NULL, 
	input_file_id VARCHAR NOT NULL, 
	completion_window VARCHAR NOT NULL, 
	status VARCHAR NOT NULL, 
	created_at BIGINT NOT NULL, 
	expires_at BIGINT NOT NULL, 
	model VARCHAR, 
	output_file_id VARCHAR, 
	error_file_id VARCHAR, 
	output_expires_after BIGINT, 
	errors JSON, 
	metadata JSON, 
	in_progress_at BIGINT, 
	finalizing_at BIGINT, 
	completed_at BIGINT, 
	failed_at BIGINT, 
	expired_at BIGINT, 
	cancelling_at BIGINT, 
	cancelled_at BIGINT, 
	total BIGINT NOT NULL, 
	completed BIGINT NOT NULL, 
	failed BIGINT NOT NULL, 
	input_tokens BIGINT NOT NULL, 
	cached_tokens BIGINT NOT NULL, 
	output_tokens BIGINT NOT NULL, 
	reasoning_tokens BIGINT NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "batches" VALUES('batch-1','alice','tideserve','/v1/completions','file-1','24h','validating',1800000000,1800086400,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,0,0,0,0,0,0);
CREATE TABLE ledger_amounts (
	minute BIGINT NOT NULL, 
	application VARCHAR NOT NULL, 
	model VARCHAR NOT NULL, 
	"key" VARCHAR NOT NULL, 
	lane VARCHAR NOT NULL, 
	state VARCHAR NOT NULL, 
	requests BIGINT NOT NULL, 
	prompt_tokens BIGINT NOT NULL, 
	cached_tokens BIGINT NOT NULL, 
	completion_tokens BIGINT NOT NULL, 
	gpu_seconds DOUBLE NOT NULL, 
	cost DOUBLE NOT NULL, 
	PRIMARY KEY (minute, application, model, "key", lane, state)
);
INSERT INTO "ledger_amounts" VALUES(0,'tideserve','tide','alice','interactive','used',1,10,5,5,1.0,0.01);
CREATE TABLE ledger_writers (
	writer VARCHAR NOT NULL, 
	number BIGINT NOT NULL, 
	minute BIGINT NOT NULL, 
	PRIMARY KEY (writer)
);
INSERT INTO "ledger_writers" VALUES('w',1,0);
CREATE TABLE tideserve_tables (
	name VARCHAR NOT NULL, 
	version INTEGER NOT NULL, 
	PRIMARY KEY (name)
);
INSERT INTO "tideserve_tables" VALUES('batches',1);
INSERT INTO "tideserve_tables" VALUES('ledger',1);
CREATE INDEX batch_files_of_owner ON batch_files (owner, id);
CREATE INDEX batches_of_owner ON batches (owner, id);
CREATE INDEX batches_by_status ON batches (status, id);
CREATE INDEX batches_of_file ON batches (input_file_id);
CREATE INDEX batch_lines_to_send ON batch_lines (batch_id, outcome, position);
CREATE INDEX ledger_amounts_of_key ON ledger_amounts (application, "key", minute);
COMMIT;
