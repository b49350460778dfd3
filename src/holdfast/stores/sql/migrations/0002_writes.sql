-- The ids of the writes of the last hour, which begin with the time. They show if a write was committed whose answer was lost.
[postgres mysql] CREATE TABLE writes (id VARBINARY(16) NOT NULL PRIMARY KEY) {clustered};
