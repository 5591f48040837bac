-- TPC-C (the TPC's standard specification, revision 5.11) for sysbench 1.0: all tables at their sizes (§ 1.3, 4.3.3) and the five transactions (§ 2.4 to 2.8) in their mix, of any
-- warehouse in each. No terminals, no thinking: whoever connects goes on as fast as it can.
--
--   sysbench tpcc.lua --warehouses=N prepare      the tables and the items
--   sysbench tpcc.lua --warehouses=N load         the rest, each thread its warehouses
--   sysbench tpcc.lua --warehouses=N run

local bit = require("bit")

sysbench.cmdline.options = { warehouses = { "how many warehouses", 10 } }

local ITEMS, DISTRICTS, CUSTOMERS = 100000, 10, 3000
-- Orders of a district at the beginning, from which on they are not delivered.
local UNDELIVERED = 2101
-- § 2.1.6: constants of the distribution; those of last names differ as its clause 1 has it.
local C_LAST_LOAD, C_LAST, C_ID, OL_I_ID = 100, 200, 259, 1234

local TABLES = {
  [[CREATE TABLE item (i_id INT PRIMARY KEY, i_im_id INT, i_name VARCHAR(24), i_price DECIMAL(5,2), i_data VARCHAR(50))]],
  [[CREATE TABLE warehouse (w_id INT PRIMARY KEY, w_name VARCHAR(10), w_street_1 VARCHAR(20), w_street_2 VARCHAR(20), w_city VARCHAR(20),
    w_state CHAR(2), w_zip CHAR(9), w_tax DECIMAL(4,4), w_ytd DECIMAL(12,2))]],
  [[CREATE TABLE district (d_w_id INT, d_id INT, d_name VARCHAR(10), d_street_1 VARCHAR(20), d_street_2 VARCHAR(20), d_city VARCHAR(20),
    d_state CHAR(2), d_zip CHAR(9), d_tax DECIMAL(4,4), d_ytd DECIMAL(12,2), d_next_o_id INT, PRIMARY KEY (d_w_id, d_id))]],
  [[CREATE TABLE customer (c_w_id INT, c_d_id INT, c_id INT, c_first VARCHAR(16), c_middle CHAR(2), c_last VARCHAR(16), c_street_1 VARCHAR(20),
    c_street_2 VARCHAR(20), c_city VARCHAR(20), c_state CHAR(2), c_zip CHAR(9), c_phone CHAR(16), c_since DATETIME, c_credit CHAR(2),
    c_credit_lim DECIMAL(12,2), c_discount DECIMAL(4,4), c_balance DECIMAL(12,2), c_ytd_payment DECIMAL(12,2), c_payment_cnt INT,
    c_delivery_cnt INT, c_data VARCHAR(500), PRIMARY KEY (c_w_id, c_d_id, c_id), KEY (c_w_id, c_d_id, c_last, c_first))]],
  [[CREATE TABLE history (h_c_id INT, h_c_d_id INT, h_c_w_id INT, h_d_id INT, h_w_id INT, h_date DATETIME, h_amount DECIMAL(6,2), h_data VARCHAR(24))]],
  [[CREATE TABLE orders (o_w_id INT, o_d_id INT, o_id INT, o_c_id INT, o_entry_d DATETIME, o_carrier_id INT, o_ol_cnt INT, o_all_local INT,
    PRIMARY KEY (o_w_id, o_d_id, o_id), KEY (o_w_id, o_d_id, o_c_id, o_id))]],
  [[CREATE TABLE new_order (no_w_id INT, no_d_id INT, no_o_id INT, PRIMARY KEY (no_w_id, no_d_id, no_o_id))]],
  [[CREATE TABLE order_line (ol_w_id INT, ol_d_id INT, ol_o_id INT, ol_number INT, ol_i_id INT, ol_supply_w_id INT, ol_delivery_d DATETIME,
    ol_quantity INT, ol_amount DECIMAL(6,2), ol_dist_info CHAR(24), PRIMARY KEY (ol_w_id, ol_d_id, ol_o_id, ol_number))]],
  [[CREATE TABLE stock (s_w_id INT, s_i_id INT, s_quantity INT, s_dist_01 CHAR(24), s_dist_02 CHAR(24), s_dist_03 CHAR(24), s_dist_04 CHAR(24),
    s_dist_05 CHAR(24), s_dist_06 CHAR(24), s_dist_07 CHAR(24), s_dist_08 CHAR(24), s_dist_09 CHAR(24), s_dist_10 CHAR(24), s_ytd INT,
    s_order_cnt INT, s_remote_cnt INT, s_data VARCHAR(50), PRIMARY KEY (s_w_id, s_i_id))]],
}

local uniform = sysbench.rand.uniform
local con

local function connect()
  con = sysbench.sql.driver():connect()
end

local function query(text, ...)
  return con:query(text:format(...))
end

local function row(text, ...)
  return con:query_row(text:format(...))
end

-- All rows of one column.
local function column(text, ...)
  local found, values = query(text, ...), {}
  for at = 1, found.nrows do values[at] = unpack(found:fetch_row(), 1, 1) end
  found:free()
  return values
end

local function nurand(a, c, from, to)
  return (bit.bor(uniform(0, a), uniform(from, to)) + c) % (to - from + 1) + from
end

local function letters(from, to)
  return sysbench.rand.string(string.rep("@", uniform(from, to)))
end

local function digits(n)
  return sysbench.rand.string(string.rep("#", n))
end

local SYLLABLES = { [0] = "BAR", "OUGHT", "ABLE", "PRI", "PRES", "ESE", "ANTI", "CALLY", "ATION", "EING" }

local function last_name(number)
  return SYLLABLES[math.floor(number / 100)] .. SYLLABLES[math.floor(number / 10) % 10] .. SYLLABLES[number % 10]
end

-- § 4.3.3.1: a tenth has the word in it.
local function data()
  local text = letters(26, 50)
  if uniform(1, 10) > 1 then return text end
  local at = uniform(1, #text - 7)
  return text:sub(1, at - 1) .. "ORIGINAL" .. text:sub(at + 8)
end

local function address()
  return ("'%s', '%s', '%s', '%s', '%s11111'"):format(letters(10, 20), letters(10, 20), letters(10, 20), letters(2, 2), digits(4))
end

-- Rows of a table, as many to a statement as sysbench holds.
local function insert(name, make, from, to)
  con:bulk_insert_init("INSERT INTO " .. name .. " VALUES")
  for n = from, to do con:bulk_insert_next("(" .. make(n) .. ")") end
  con:bulk_insert_done()
end

local function load_district(w, d)
  insert("customer", function(c)
    local last = c <= 1000 and c - 1 or nurand(255, C_LAST_LOAD, 0, 999)
    return ("%d, %d, %d, '%s', 'OE', '%s', %s, '%s', NOW(), '%s', 50000, %.4f, -10, 10, 1, 0, '%s'"):format(w, d, c, letters(8, 16),
      last_name(last), address(), digits(16), uniform(1, 10) == 1 and "BC" or "GC", uniform(0, 5000) / 10000, letters(300, 500))
  end, 1, CUSTOMERS)
  insert("history", function(c)
    return ("%d, %d, %d, %d, %d, NOW(), 10, '%s'"):format(c, d, w, d, w, letters(12, 24))
  end, 1, CUSTOMERS)
  local order = {}
  for c = 1, CUSTOMERS do order[c] = c end
  for c = CUSTOMERS, 2, -1 do
    local other = uniform(1, c)
    order[c], order[other] = order[other], order[c]
  end
  local lines = {}
  insert("orders", function(o)
    lines[o] = uniform(5, 15)
    return ("%d, %d, %d, %d, NOW(), %s, %d, 1"):format(w, d, o, order[o], o < UNDELIVERED and uniform(1, 10) or "NULL", lines[o])
  end, 1, CUSTOMERS)
  insert("new_order", function(o) return ("%d, %d, %d"):format(w, d, o) end, UNDELIVERED, CUSTOMERS)
  con:bulk_insert_init("INSERT INTO order_line VALUES")
  for o = 1, CUSTOMERS do
    local delivered = o < UNDELIVERED
    for n = 1, lines[o] do
      con:bulk_insert_next(("(%d, %d, %d, %d, %d, %d, %s, 5, %.2f, '%s')"):format(w, d, o, n, uniform(1, ITEMS), w, delivered and "NOW()" or "NULL",
        delivered and 0 or uniform(1, 999999) / 100, letters(24, 24)))
    end
  end
  con:bulk_insert_done()
end

local function load_warehouse(w)
  query("INSERT INTO warehouse VALUES (%d, '%s', %s, %.4f, 300000)", w, letters(6, 10), address(), uniform(0, 2000) / 10000)
  insert("stock", function(i)
    local dist = {}
    for d = 1, DISTRICTS do dist[d] = "'" .. letters(24, 24) .. "'" end
    return ("%d, %d, %d, %s, 0, 0, 0, '%s'"):format(w, i, uniform(10, 100), table.concat(dist, ", "), data())
  end, 1, ITEMS)
  for d = 1, DISTRICTS do
    query("INSERT INTO district VALUES (%d, %d, '%s', %s, %.4f, 30000, %d)", w, d, letters(6, 10), address(), uniform(0, 2000) / 10000, CUSTOMERS + 1)
    load_district(w, d)
  end
end

sysbench.cmdline.commands = {
  prepare = { function()
    connect()
    for _, text in ipairs(TABLES) do query("%s", text) end
    insert("item", function(i)
      return ("%d, %d, '%s', %.2f, '%s'"):format(i, uniform(1, 10000), letters(14, 24), uniform(100, 10000) / 100, data())
    end, 1, ITEMS)
  end },
  load = { function()
    connect()
    for w = sysbench.tid % sysbench.opt.threads + 1, sysbench.opt.warehouses, sysbench.opt.threads do load_warehouse(w) end
  end, sysbench.cmdline.PARALLEL_COMMAND },
}

-- Another one, where there is another one.
local function remote(w)
  local count = sysbench.opt.warehouses
  if count == 1 then return w end
  return (w - 1 + uniform(1, count - 1)) % count + 1
end

-- § 2.5.2.2: of those of one name the one in the middle.
local function some_customer(w, d)
  if uniform(1, 100) > 60 then return nurand(1023, C_ID, 1, CUSTOMERS) end
  local found = column("SELECT c_id FROM customer WHERE c_w_id = %d AND c_d_id = %d AND c_last = '%s' ORDER BY c_first", w, d,
    last_name(nurand(255, C_LAST, 0, 999)))
  return #found > 0 and tonumber(found[math.ceil(#found / 2)]) or nurand(1023, C_ID, 1, CUSTOMERS)
end

local function new_order(w)
  local d, c = uniform(1, DISTRICTS), nurand(1023, C_ID, 1, CUSTOMERS)
  local lines, all_local = {}, 1
  for n = 1, uniform(5, 15) do
    lines[n] = { item = nurand(8191, OL_I_ID, 1, ITEMS), from = uniform(1, 100) == 1 and remote(w) or w }
    if lines[n].from ~= w then all_local = 0 end
  end
  -- In one order for all, so that few wait for each other in a circle.
  table.sort(lines, function(a, b) return a.from < b.from or a.from == b.from and a.item < b.item end)
  -- § 2.4.1.4: one in a hundred names an item that there is not, last, and is rolled back.
  if uniform(1, 100) == 1 then lines[#lines].item = ITEMS + 1 end
  query("BEGIN")
  row("SELECT c_discount, c_last, c_credit, w_tax FROM customer JOIN warehouse ON w_id = c_w_id WHERE c_w_id = %d AND c_d_id = %d AND c_id = %d", w, d, c)
  local o = tonumber((row("SELECT d_next_o_id, d_tax FROM district WHERE d_w_id = %d AND d_id = %d FOR UPDATE", w, d)))
  query("UPDATE district SET d_next_o_id = %d WHERE d_w_id = %d AND d_id = %d", o + 1, w, d)
  query("INSERT INTO orders VALUES (%d, %d, %d, %d, NOW(), NULL, %d, %d)", w, d, o, c, #lines, all_local)
  query("INSERT INTO new_order VALUES (%d, %d, %d)", w, d, o)
  for n, line in ipairs(lines) do
    local price = column("SELECT i_price FROM item WHERE i_id = %d", line.item)[1]
    if not price then
      query("ROLLBACK")
      return
    end
    local quantity, info = row("SELECT s_quantity, s_dist_%02d, s_data FROM stock WHERE s_w_id = %d AND s_i_id = %d FOR UPDATE", d, line.from, line.item)
    local ordered = uniform(1, 10)
    local left = tonumber(quantity) - ordered
    if left < 10 then left = left + 91 end
    query("UPDATE stock SET s_quantity = %d, s_ytd = s_ytd + %d, s_order_cnt = s_order_cnt + 1, s_remote_cnt = s_remote_cnt + %d WHERE s_w_id = %d AND s_i_id = %d",
      left, ordered, line.from == w and 0 or 1, line.from, line.item)
    query("INSERT INTO order_line VALUES (%d, %d, %d, %d, %d, %d, NULL, %d, %.2f, '%s')", w, d, o, n, line.item, line.from, ordered,
      ordered * tonumber(price), info)
  end
  query("COMMIT")
end

local function payment(w)
  local d, amount = uniform(1, DISTRICTS), uniform(100, 500000) / 100
  local cw, cd = w, d
  if uniform(1, 100) > 85 then cw, cd = remote(w), uniform(1, DISTRICTS) end
  query("BEGIN")
  query("UPDATE warehouse SET w_ytd = w_ytd + %.2f WHERE w_id = %d", amount, w)
  local w_name = row("SELECT w_name, w_street_1, w_street_2, w_city, w_state, w_zip FROM warehouse WHERE w_id = %d", w)
  query("UPDATE district SET d_ytd = d_ytd + %.2f WHERE d_w_id = %d AND d_id = %d", amount, w, d)
  local d_name = row("SELECT d_name, d_street_1, d_street_2, d_city, d_state, d_zip FROM district WHERE d_w_id = %d AND d_id = %d", w, d)
  local c = some_customer(cw, cd)
  local credit = row("SELECT c_credit, c_first, c_last, c_balance FROM customer WHERE c_w_id = %d AND c_d_id = %d AND c_id = %d FOR UPDATE", cw, cd, c)
  local note = ""
  if credit == "BC" then
    note = (", c_data = LEFT(CONCAT('%d %d %d %d %d %.2f ', c_data), 500)"):format(c, cd, cw, d, w, amount)
  end
  query("UPDATE customer SET c_balance = c_balance - %.2f, c_ytd_payment = c_ytd_payment + %.2f, c_payment_cnt = c_payment_cnt + 1%s WHERE c_w_id = %d AND c_d_id = %d AND c_id = %d",
    amount, amount, note, cw, cd, c)
  query("INSERT INTO history VALUES (%d, %d, %d, %d, %d, NOW(), %.2f, '%s    %s')", c, cd, cw, d, w, amount, w_name, d_name)
  query("COMMIT")
end

local function order_status(w)
  local d = uniform(1, DISTRICTS)
  query("BEGIN")
  local c = some_customer(w, d)
  row("SELECT c_balance, c_first, c_middle, c_last FROM customer WHERE c_w_id = %d AND c_d_id = %d AND c_id = %d", w, d, c)
  local o = column("SELECT o_id FROM orders WHERE o_w_id = %d AND o_d_id = %d AND o_c_id = %d ORDER BY o_id DESC LIMIT 1", w, d, c)[1]
  if o then
    column("SELECT ol_i_id, ol_supply_w_id, ol_quantity, ol_amount, ol_delivery_d FROM order_line WHERE ol_w_id = %d AND ol_d_id = %d AND ol_o_id = %s", w, d, o)
  end
  query("COMMIT")
end

local function delivery(w)
  local carrier = uniform(1, 10)
  query("BEGIN")
  for d = 1, DISTRICTS do
    local o = column("SELECT no_o_id FROM new_order WHERE no_w_id = %d AND no_d_id = %d ORDER BY no_o_id LIMIT 1 FOR UPDATE", w, d)[1]
    if o then
      query("DELETE FROM new_order WHERE no_w_id = %d AND no_d_id = %d AND no_o_id = %s", w, d, o)
      local c = row("SELECT o_c_id FROM orders WHERE o_w_id = %d AND o_d_id = %d AND o_id = %s", w, d, o)
      query("UPDATE orders SET o_carrier_id = %d WHERE o_w_id = %d AND o_d_id = %d AND o_id = %s", carrier, w, d, o)
      query("UPDATE order_line SET ol_delivery_d = NOW() WHERE ol_w_id = %d AND ol_d_id = %d AND ol_o_id = %s", w, d, o)
      local amount = row("SELECT SUM(ol_amount) FROM order_line WHERE ol_w_id = %d AND ol_d_id = %d AND ol_o_id = %s", w, d, o)
      query("UPDATE customer SET c_balance = c_balance + %s, c_delivery_cnt = c_delivery_cnt + 1 WHERE c_w_id = %d AND c_d_id = %d AND c_id = %s", amount, w, d, c)
    end
  end
  query("COMMIT")
end

local function stock_level(w)
  local d, threshold = uniform(1, DISTRICTS), uniform(10, 20)
  query("BEGIN")
  local o = tonumber((row("SELECT d_next_o_id FROM district WHERE d_w_id = %d AND d_id = %d", w, d)))
  row("SELECT COUNT(DISTINCT s_i_id) FROM order_line JOIN stock ON s_w_id = ol_w_id AND s_i_id = ol_i_id " ..
    "WHERE ol_w_id = %d AND ol_d_id = %d AND ol_o_id >= %d AND ol_o_id < %d AND s_quantity < %d", w, d, o - 20, o, threshold)
  query("COMMIT")
end

function thread_init()
  connect()
end

function thread_done()
  con:disconnect()
end

-- § 5.2.3, as many terminals do it: at least 43 payments and 4 of each of the last three in a hundred.
function event()
  local w, draw = uniform(1, sysbench.opt.warehouses), uniform(1, 100)
  if draw <= 45 then new_order(w)
  elseif draw <= 88 then payment(w)
  elseif draw <= 92 then order_status(w)
  elseif draw <= 96 then delivery(w)
  else stock_level(w) end
end
