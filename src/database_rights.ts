// What the database user needs for the first start and may lack, as the statements that give it. Asks, changes nothing.
import type pg from 'pg'

/**
 * The statements that a superuser has to run in this database before its user can make the hub's schema and the
 * role that the hub works as; empty where no right is missing.
 */
export async function missingGrants(client: pg.Client): Promise<{ user: string; run: string[] }> {
  const { rows } = await client.query<Rights>(rightsSql)
  const [rights] = rows
  if (rights === undefined) return { user: '', run: [] }
  const { user, database } = rights
  const run: string[] = []
  if (!rights.createsRoles) run.push(`alter role ${user} createrole;`)
  if (!rights.grantsRole) run.push(`grant muster_hub to ${user} with admin option;`)
  if (!rights.createsSchemas) run.push(`grant create on database ${database} to ${user};`)
  if (!rights.createsTables) run.push(`grant create on schema public to ${user};`)
  return { user, run }
}

/**
 * What to do where the role that the hub works as is not there, or may not do its work, although the schema is;
 * null where all is well. A dump holds no roles, and its grants are refused where they are missing.
 */
export async function missingRole(client: pg.Client): Promise<string | null> {
  const { rows } = await client.query<{ user: string; well: boolean }>(roleSql)
  const [role] = rows
  if (role === undefined || role.well) return null
  return (
    'the role muster_hub, which the hub works as, is missing here or lacks its rights: a dump holds no roles, and ' +
    'without the role what a dump grants is refused. Let a superuser run this, and restore the dump anew into an ' +
    `empty database:\n  create role muster_hub nologin; -- unless it is there\n  grant muster_hub to ${role.user} with admin option;`
  )
}

/** One table stands for all: a restore grants each of them or none. */
const roleSql = `
select format('%I', current_user) as "user", to_regrole('muster_hub') is not null
  and (select pg_has_role(current_user, oid, 'member') and has_table_privilege(oid, 'data_keys', 'select')
    from pg_roles where rolname = 'muster_hub') as well`

interface Rights {
  /** Both as SQL writes them. */
  user: string
  database: string
  createsRoles: boolean
  grantsRole: boolean
  createsSchemas: boolean
  createsTables: boolean
}

/**
 * A role that is there was made for another database of this server: since version 16 CREATEROLE alone does not
 * grant it on.
 */
const rightsSql = `
select format('%I', current_user) as "user", format('%I', current_database()) as database,
  r.rolcreaterole or r.rolsuper as "createsRoles",
  r.rolsuper or current_setting('server_version_num')::int < 160000
    or not exists (select from pg_roles where rolname = 'muster_hub')
    or exists (select from pg_roles h where h.rolname = 'muster_hub'
      and pg_has_role(current_user, h.oid, 'MEMBER WITH ADMIN OPTION')) as "grantsRole",
  has_database_privilege(current_database(), 'create') as "createsSchemas",
  has_schema_privilege('public', 'create') as "createsTables"
from pg_roles r where r.rolname = current_user`
