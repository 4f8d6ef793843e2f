//! PostgreSQL write-ahead log bytes: reader, writer and record decoding for versions 13 to 18.
