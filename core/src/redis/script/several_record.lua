  local record, record_ends
$own_record
  kept[key] = record and {record, record_ends}
