// How the ends of an execution's commands are counted: added up by the very statement that ends them, so
// that reading the counts of 100,000 devices is a sum over at most 16 rows.

/** Ends by status, as columns of `execution_ends`. */
export const endColumns = ['completed', 'failed', 'timeout', 'cancelled', 'expired'] as const

/**
 * An insert that counts the ends among the rows of the CTE `ended`, which has execution_id, status and
 * completed_at. In order of id, so that two statements that meet never wait for each other in a circle.
 */
export function countEndsSql(ended: string): string {
  const counts = endColumns.map((status) => `count(*) filter (where status = '${status}')`)
  const sums = endColumns.map((column) => `${column} = n.${column} + excluded.${column}`)
  return `insert into execution_ends as n (execution_id, slot, ${endColumns.join(', ')})
  select execution_id, pg_backend_pid() % 16, ${counts.join(', ')}
  from ${ended} where execution_id is not null and completed_at is not null
  group by execution_id order by execution_id
  on conflict (execution_id, slot) do update set fresh = true, ${sums.join(', ')}`
}
